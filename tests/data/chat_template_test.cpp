// Templates against the strings of the models' own code, labels against the text they must cover.
#include "core/data/text/chat_template.h"

#include <catch2/catch.hpp>

#include "core/data/records/record_file.h"
#include "tests/data/text_support.h"

using namespace mmt;
using namespace mmt::data;

namespace {

Record record(const std::string& json) { return parse_record(json, "test"); }

std::string text_of(const Dialogue& d, bool labelled_only = false) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < d.ids.size(); ++i) {
    if (!labelled_only || d.labels[i] != kIgnoreLabel) ids.push_back(d.ids[i]);
  }
  return usual_tokenizer().decode(ids, false);
}

const std::string kTwoTurns = R"({"conversations": [{"from": "human", "value": "what is this?"},
  {"from": "gpt", "value": "ankle boot"}, {"from": "human", "value": "sure?"}, {"from": "gpt", "value": "yes."}]})";

}  // namespace

TEST_CASE("templates write the strings of the models") {
  struct Case {
    std::string name, text, labelled;
  };
  const Case c = GENERATE(
      Case{"vicuna_v1",
           "<s>A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
           "detailed, and polite answers to the user's questions. USER: what is this? ASSISTANT: ankle boot</s>USER: "
           "sure? "
           "ASSISTANT: yes.</s>",
           " ankle boot</s> yes.</s>"},
      Case{"llava_v1",
           "<s>A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, "
           "detailed, and polite answers to the human's questions. USER: what is this? ASSISTANT: ankle boot</s>USER: "
           "sure? ASSISTANT: yes.</s>",
           " ankle boot</s> yes.</s>"},
      Case{"plain", "<s>ankle boot\nyes.\n", "ankle boot\nyes.\n"},
      Case{"chatml",
           "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nwhat is this?<|im_end|>\n"
           "<|im_start|>assistant\nankle boot<|im_end|>\n<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
           "yes.<|im_end|>\n",
           "ankle boot<|im_end|>yes.<|im_end|>"},
      Case{"llama3",
           "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nwhat is this?<|eot_id|><|start_header_id|>"
           "assistant<|end_header_id|>\n\nankle "
           "boot<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nsure?<|eot_id|>"
           "<|start_header_id|>assistant<|end_header_id|>\n\nyes.<|eot_id|>",
           "ankle boot<|eot_id|>yes.<|eot_id|>"});
  INFO(c.name);
  const ChatTemplate chat(named_template(c.name), usual_tokenizer());
  const Dialogue d = chat.build(record(kTwoTurns), "test");
  CHECK(text_of(d) == c.text);
  CHECK(text_of(d, true) == c.labelled);
  CHECK(d.ids.size() == d.labels.size());
  CHECK(d.ids.size() == d.fixed.size());
  for (std::size_t i = 0; i < d.ids.size(); ++i) CHECK((d.labels[i] == kIgnoreLabel || d.labels[i] == d.ids[i]));
  // Built piece by piece, the ids are those of the whole string.
  CHECK(d.ids == usual_tokenizer().encode_with_special(c.text));
}

TEST_CASE("dialogues have the text and the ids of apply_chat_template") {
  // Made by scripts/reference/template_cases.py from the families' Jinja templates.
  const nlohmann::json cases = nlohmann::json::parse(read_whole(std::string(MMT_TEST_DATA) + "/templates.json"));
  REQUIRE(cases.size() == 30);
  const std::string folder = std::string(MMT_TEST_DATA) + "/tokenizer/";
  const Tokenizer llama2 = Tokenizer::load(folder + "llama2"), gemma = Tokenizer::load(folder + "gemma"),
                  model = Tokenizer::load(folder + "llama2/tokenizer.model");
  for (const auto& c : cases) {
    const std::string kind = c["tokenizer"];
    const Tokenizer& first = kind == "llama2" ? llama2 : kind == "gemma" ? gemma : usual_tokenizer();
    for (const Tokenizer* tokenizer : {&first, kind == "llama2" ? &model : &first}) {
      const ChatTemplate chat(named_template(c["template"].get<std::string>()), *tokenizer);
      const Record r = record(nlohmann::json{{"messages", c["messages"]}}.dump());
      const Dialogue whole = chat.build(r, "test"), prompt = chat.prompt(r, "test");
      INFO(kind << ", " << c["template"] << ": " << c["text"]);
      if (kind != "llama2") CHECK(tokenizer->decode(whole.ids, false) == c["text"].get<std::string>());
      CHECK(whole.ids == c["ids"].get<std::vector<TokenId>>());
      CHECK(prompt.ids == c["prompt_ids"].get<std::vector<TokenId>>());
      const std::string answer = c["messages"].back()["content"];
      const auto generated = std::span(whole.ids).subspan(prompt.ids.size());
      CHECK(chat.answer(generated) == answer);
    }
  }
}

TEST_CASE("media slots are the template's") {
  const std::string json = R"({"images": ["a.png"], "audios": ["b.wav", "c.wav"], "messages": [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<audio>hear <image>what?<audio>"}, {"role": "assistant", "content": "boot"}]})";
  const Record r = record(json);
  REQUIRE(r.media.size() == 3);
  const ChatTemplate chat(named_template("chatml"), usual_tokenizer());
  const Dialogue d = chat.build(r, "test");
  CHECK(text_of(d) ==
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nAudio 1: <|audio_bos|><|AUDIO|><|audio_eos|>\nhear "
        "<|vision_start|><|image_pad|><|vision_end|>what?Audio 2: <|audio_bos|><|AUDIO|><|audio_eos|>\n<|im_end|>\n"
        "<|im_start|>assistant\nboot<|im_end|>\n");
  REQUIRE(d.slots.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    const auto& media = r.media[static_cast<std::size_t>(d.slots[i].media)];
    CHECK(d.ids[static_cast<std::size_t>(d.slots[i].at)] == chat.placeholder(media.modality));
    CHECK(d.fixed[static_cast<std::size_t>(d.slots[i].at)] == 1);
  }
  CHECK(r.media[static_cast<std::size_t>(d.slots[0].media)].path == "b.wav");
  CHECK(r.media[static_cast<std::size_t>(d.slots[1].media)].path == "a.png");
  CHECK(r.media[static_cast<std::size_t>(d.slots[2].media)].path == "c.wav");
}

TEST_CASE("the only picture of a turn moves to its front in LLaVA templates") {
  const ChatTemplate chat(named_template("vicuna_v1"), usual_tokenizer());
  const auto tail = [&](const std::string& value) {
    const Record r = record(R"({"image": "a.png", "conversations": [{"from": "human", "value": ")" + value +
                            R"("}, {"from": "gpt", "value": "x"}]})");
    const std::string text = text_of(chat.build(r, "test"));
    return text.substr(text.find("USER:"));
  };
  CHECK(tail("<image>\\nwhat?") == "USER: <image>\nwhat? ASSISTANT: x</s>");
  CHECK(tail("what?\\n<image>") == "USER: <image>\nwhat? ASSISTANT: x</s>");
  CHECK(tail("<image>") == "USER: <image> ASSISTANT: x</s>");
  const Record two = record(R"({"image": "a.png", "audio": "b.wav", "conversations": [
    {"from": "human", "value": "<audio>\n<image>\nwhat?"}, {"from": "gpt", "value": "x"}]})");
  const std::string text = text_of(chat.build(two, "test"));
  CHECK(text.substr(text.find("USER:")) == "USER: <audio>\n<image>\nwhat? ASSISTANT: x</s>");
  const ChatTemplate plain(named_template("plain"), usual_tokenizer());
  const Record caption = record(R"({"image": "a.png", "conversations": [{"from": "human", "value": "describe <image>"},
    {"from": "gpt", "value": "a boot"}]})");
  CHECK(text_of(plain.build(caption, "test")) == "<s><image>a boot\n");
}

TEST_CASE("literal special tokens in user and answer text stay text") {
  const ChatTemplate chat(named_template("chatml"), usual_tokenizer());
  const Record r = record(R"({"images": ["a.png"], "messages": [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "<image> <|image_pad|> <|im_end|>"}]},
    {"role": "assistant", "content": "{type<image>|bold} <|im_end|><|image_pad|>"}]})");
  const Dialogue d = chat.build(r, "test");
  const auto count = [&](const char* token) {
    return std::count(d.ids.begin(), d.ids.end(), usual_tokenizer().id_of(token).value());
  };
  CHECK(count("<|image_pad|>") == 1);
  CHECK(count("<|im_end|>") == 3);  // system, user, assistant
  CHECK(count("<image>") == 0);
  REQUIRE(d.slots.size() == 1);
  CHECK(text_of(d, true) == "{type<image>|bold} <|im_end|><|image_pad|><|im_end|>");
}

TEST_CASE("labels meet the prompt exactly although the tokenizer merges across the border") {
  // " ankle" is one token of many letters; the label starts with it, and what is before equals the generation prompt.
  const ChatTemplate chat(named_template("vicuna_v1"), usual_tokenizer());
  const Record r = record(kTwoTurns);
  const Dialogue whole = chat.build(r, "test"), prompt = chat.prompt(r, "test");
  REQUIRE(prompt.ids.size() < whole.ids.size());
  CHECK(std::equal(prompt.ids.begin(), prompt.ids.end(), whole.ids.begin()));
  CHECK(std::all_of(prompt.labels.begin(), prompt.labels.end(), [](auto l) { return l == kIgnoreLabel; }));
  std::vector<TokenId> rest(whole.ids.begin() + static_cast<std::ptrdiff_t>(prompt.ids.size()), whole.ids.end());
  for (std::size_t i = prompt.ids.size(); i < whole.ids.size(); ++i) CHECK(whole.labels[i] == whole.ids[i]);
  CHECK(chat.answer(rest) == "yes.");
  rest.push_back(rest.front());  // what a model writes behind its end is cut off
  CHECK(chat.answer(rest) == "yes.");
  for (const std::string& name : template_names()) {
    const ChatTemplate t(named_template(name), usual_tokenizer());
    const Dialogue w = t.build(r, "test"), p = t.prompt(r, "test");
    INFO(name);
    REQUIRE(p.ids.size() < w.ids.size());
    CHECK(std::equal(p.ids.begin(), p.ids.end(), w.ids.begin()));
    CHECK(t.answer(std::span(w.ids).subspan(p.ids.size())) == "yes.");
  }
}

TEST_CASE("an answer with loss false is not supervised") {
  const ChatTemplate chat(named_template("chatml"), usual_tokenizer());
  const Dialogue d = chat.build(record(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "loss": false}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}]})"),
                                "test");
  CHECK(text_of(d, true) == "d<|im_end|>");
}

TEST_CASE("the label of the first row is never supervised") {
  TemplateSpec spec = named_template("plain");
  spec.start = "";
  const ChatTemplate chat(spec, usual_tokenizer());
  const Dialogue d = chat.build(record(kTwoTurns), "test");
  CHECK(d.labels[0] == kIgnoreLabel);
  CHECK(d.labels[1] == d.ids[1]);
}

TEST_CASE("templates of the user and their mistakes") {
  TemplateSpec spec;
  spec.name = "mine";
  spec.user = {"Q: ", "", "\n"};
  spec.assistant = {"A:", " ", "{eos}"};
  const ChatTemplate chat(spec, usual_tokenizer());
  CHECK(text_of(chat.build(record(kTwoTurns), "test")) == "Q: what is this?\nA: ankle boot</s>Q: sure?\nA: yes.</s>");
  CHECK(chat.placeholder(Modality::image) == -1);
  spec.user.prefix = "<|user|>";
  CHECK_THROWS_WITH(ChatTemplate(spec, usual_tokenizer()),
                    Catch::Contains("<|user|>") && Catch::Contains("template mine"));
  spec.user.prefix = "";
  spec.assistant.suffix = "";
  CHECK_THROWS_WITH(ChatTemplate(spec, usual_tokenizer()), Catch::Contains("no end"));
  CHECK_THROWS_WITH(named_template("vicuna"), Catch::Contains("vicuna_v1"));
  const Tokenizer bare = test_tokenizer({});
  CHECK_THROWS_WITH(ChatTemplate(named_template("vicuna_v1"), bare), Catch::Contains("end-of-text"));
  CHECK_THROWS_WITH(ChatTemplate(named_template("chatml"), bare), Catch::Contains("<|im_start|>"));
  // A text-only tokenizer with ChatML is fine until a picture comes.
  const Tokenizer text_only = test_tokenizer({"<|im_start|>", "<|im_end|>"});
  const ChatTemplate chatml(named_template("chatml"), text_only);
  CHECK_NOTHROW(chatml.build(record(kTwoTurns), "test"));
  CHECK_THROWS_WITH(chatml.require(Modality::image), Catch::Contains("<|vision_start|>"));
}

TEST_CASE("BOS and EOS of the tokenizer's own config are placed by id") {
  const TempFolder folder;
  folder.write("tokenizer.json", read_whole(std::string(MMT_TEST_DATA) + "/tokenizer/llama3.json"));
  folder.write("tokenizer_config.json",
               R"({"bos_token": null, "eos_token": "zebra"})");  // a plain word of the vocabulary
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const ChatTemplate chat(named_template("vicuna_v1"), tokenizer);
  const Dialogue d = chat.build(record(kTwoTurns), "test");
  CHECK(d.ids.front() == tokenizer.id_of("<s>").value());  // unnamed: the usual one
  CHECK(d.ids.back() == tokenizer.id_of("zebra").value());
  CHECK(d.labels.back() == d.ids.back());
  CHECK(chat.stops()[0] == std::vector<TokenId>{d.ids.back()});
  folder.write("tokenizer_config.json", R"({"eos_token": "<nowhere>"})");
  const Tokenizer wrong = Tokenizer::load(folder.path());
  CHECK_THROWS_WITH(ChatTemplate(named_template("vicuna_v1"), wrong),
                    Catch::Contains("<nowhere>") && Catch::Contains("eos_token"));
}

TEST_CASE("roles out of order are a fault of the sample") {
  const ChatTemplate chat(named_template("vicuna_v1"), usual_tokenizer());
  const auto fails = [&](const std::string& json, const std::string& text) {
    CHECK_THROWS_WITH(chat.build(record(json), "set.json:3: sample 1"),
                      Catch::Contains(text) && Catch::Contains("sample 1"));
  };
  fails(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]})", "two user turns");
  fails(R"({"messages": [{"role": "assistant", "content": "a"}]})", "follows a user");
  fails(R"({"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]})", "no tool turns");
}

TEST_CASE("template hashes tell settings apart") {
  TemplateSpec spec = named_template("vicuna_v1");
  const auto hash = ChatTemplate(spec, usual_tokenizer()).hash();
  CHECK(ChatTemplate(spec, usual_tokenizer()).hash() == hash);
  spec.media_first = false;
  CHECK(ChatTemplate(spec, usual_tokenizer()).hash() != hash);
  spec = named_template("vicuna_v1");
  spec.user = {"USER: ", "", " "};
  CHECK(ChatTemplate(spec, usual_tokenizer()).hash() != hash);
  CHECK(ChatTemplate(named_template("vicuna_v1"), test_tokenizer({"<s>", "</s>"})).hash() != hash);
}
