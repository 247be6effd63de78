// The named chat templates. Texts and separators are those of the models' own code: LLaVA's conversation.py for
// vicuna_v1, llava_v1 and plain, the chat templates of Qwen2 / Qwen2-VL / Qwen2-Audio and of Llama 3.
#include <fmt/format.h>

#include "core/data/text/chat_template.h"
#include "core/error.h"

namespace mmt::data {
namespace {

TemplateSpec llava_family(std::string name, std::string system) {
  TemplateSpec t;
  t.name = std::move(name);
  t.start = "{bos}";
  t.default_system = std::move(system);
  t.system = {"", "", " "};
  t.user = {"USER:", " ", " "};
  t.assistant = {"ASSISTANT:", " ", "{eos}"};
  t.image = {"", "<image>", ""};
  t.audio = {"", "<audio>", ""};
  t.video = {"", "<video>", ""};
  t.media_first = true;
  return t;
}

TemplateSpec plain() {
  TemplateSpec t;
  t.name = "plain";
  t.start = "{bos}";
  t.assistant = {"", "", "\n"};
  t.image = {"", "<image>", ""};
  t.audio = {"", "<audio>", ""};
  t.video = {"", "<video>", ""};
  t.user_text = false;
  return t;
}

TemplateSpec chatml() {
  TemplateSpec t;
  t.name = "chatml";
  t.default_system = "You are a helpful assistant.";
  t.system = {"<|im_start|>system\n", "", "<|im_end|>\n"};
  t.user = {"<|im_start|>user\n", "", "<|im_end|>\n"};
  t.assistant = {"<|im_start|>assistant\n", "", "<|im_end|>\n"};
  t.tool = {"<|im_start|>tool\n", "", "<|im_end|>\n"};
  t.image = {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"};
  t.audio = {"Audio {n}: <|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>\n"};
  t.video = {"<|vision_start|>", "<|video_pad|>", "<|vision_end|>"};
  return t;
}

TemplateSpec llama3() {
  const auto turn = [](const std::string& role) {
    return TurnFormat{"<|start_header_id|>" + role + "<|end_header_id|>\n\n", "", "<|eot_id|>"};
  };
  TemplateSpec t;
  t.name = "llama3";
  t.start = "<|begin_of_text|>";
  t.system = turn("system");
  t.user = turn("user");
  t.assistant = turn("assistant");
  t.tool = turn("ipython");
  t.image = {"", "<image>", ""};
  t.audio = {"", "<audio>", ""};
  t.video = {"", "<video>", ""};
  t.trim = true;
  return t;
}

}  // namespace

std::vector<std::string> template_names() { return {"vicuna_v1", "llava_v1", "plain", "chatml", "llama3"}; }

TemplateSpec named_template(std::string_view name) {
  if (name == "vicuna_v1") {
    return llava_family("vicuna_v1",
                        "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
                        "helpful, detailed, and polite answers to the user's questions.");
  }
  if (name == "llava_v1") {
    return llava_family("llava_v1",
                        "A chat between a curious human and an artificial intelligence assistant. The assistant gives "
                        "helpful, detailed, and polite answers to the human's questions.");
  }
  if (name == "plain") return plain();
  if (name == "chatml") return chatml();
  if (name == "llama3") return llama3();
  throw ConfigError(fmt::format("template {:?} is not known; known are {}", name, fmt::join(template_names(), ", ")));
}

}  // namespace mmt::data
