// What users and the world do wrong, each with its right outcome: a clear message, the right exit code, nothing lost.
#include "tests/apps/fixture.h"

#include <catch2/catch.hpp>

#include <fstream>

using namespace mmt::app_test;
using Catch::Matchers::Contains;

namespace {

const std::vector<std::string> kShort = {"train.steps=3", "learning_rate.warmup_steps=1", "eval.every_steps=0"};

/// The tiny run trained on one data file alone, made of these JSON lines.
std::vector<std::string> only(const TinyRun& tiny, const std::string& lines, std::vector<std::string> more = {}) {
  write_text(tiny.folder() / "own.jsonl", lines);
  std::vector<std::string> set = kShort;
  set.push_back("data.sets=[{path: " + (tiny.folder() / "own.jsonl").string() + ", format: messages}]");
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

std::string dialogue(const std::string& question, const std::string& answer, const std::string& media = "") {
  return R"({"messages": [{"role": "user", "content": ")" + question + R"("}, {"role": "assistant", "content": ")" +
         answer + "\"}]" + (media.empty() ? "" : ", " + media) + "}\n";
}

}  // namespace

TEST_CASE("bad config: every mistake is reported at once with its place") {
  const TinyRun tiny;
  tiny.edit_config("train:", "trian: {}\ntrain:");
  const Outcome o = tiny.run("train", {"train.steps=many", "optimizer.lr=-1", "modules.llm.kind=lama"});
  require_outcome(o, kUsage, "trian");
  for (const char* part :
       {"did you mean \"train\"", "train.steps", "optimizer.lr", "did you mean \"llama\"", "config.yaml:"}) {
    REQUIRE_THAT(o.err, Contains(part));
  }
}

TEST_CASE("bad config: layouts that do not fit are refused with the legal values") {
  const TinyRun tiny;
  const auto refused = [&](const std::vector<std::string>& sets, const std::string& text) {
    require_outcome(tiny.run("train", sets), kUsage, text);
  };
  refused({"parallel.layout.all.tp=3"}, "legal products are 1");
  refused({"parallel.layout.all.dp=2"}, "mpirun -np 2");
  refused({"parallel.layout.all.ranks=0-3"}, "rank 1 does not exist");
  refused({"parallel.layout.all.cp=2"}, "context parallelism is not supported yet");
  refused({"parallel.layout.llm.ranks=0"}, "has no ranks");
  refused({"parallel.layout.nobody.ranks=0"}, "there is no such module");
  refused({"parallel.schedule.policy=fastest"}, "zero-bubble");
  refused({"parallel.zero.llm=2"}, "not supported yet");
  refused({"train.recompute=some"}, "selective");
  refused({"train.recompute={nobody: full}"}, "there is no such module");
  const auto invalid = [&](const std::vector<std::string>& sets, const std::string& text) {
    require_outcome(tiny.run("validate", sets), kUsage, text);
  };
  invalid({"parallel.layout.all.pp=100"}, "at most");
  invalid({"parallel.layout.all.tp=7"}, "legal are 1");
  invalid({"parallel.layout.all.tp=7"}, "parallel.replicate_tp.eyes: true");
  invalid({"parallel.layout.all.sequence_parallel=true"}, "tp is 1");
  invalid({"parallel.replicate_tp.nobody=true"}, "there is no such module");
  invalid({"parallel.layout.all.pp=2", "parallel.layout.all.stages=[{llm: 0-1}]"}, "1 listed, pp 2 needs 2");
  invalid({"parallel.layout.all.pp=2", "parallel.layout.all.stages=[{llm: 0-99}, {llm: head}]"}, "names no layer");
  const std::string apart =
      "parallel.layout.all.stages=[{eyes: embed-projector, ears: embed-projector}, {llm: 0-head}]";
  invalid({"parallel.layout.all.pp=2", "modules.eyes.projector.place=llm", apart}, "wants it in stage 1");
}

TEST_CASE("bad config: a pattern that matches nothing, keys that are not there yet, a missing file") {
  const TinyRun tiny;
  require_outcome(tiny.run("train", {"modules.llm.frozen=[no_such_layer]"}), kUsage,
                  "\"no_such_layer\" matches no parameter");
  require_outcome(tiny.run("train", {"optimizer.groups=[{match: no_such, lr: 1}]"}), kUsage,
                  "matches no trainable parameter");
  require_outcome(tiny.run("train", {"parallel.schedule.policy=nested"}), kUsage, "not supported yet");
  require_outcome(tiny.run("train", {"run.device=cuda"}), kUsage, "not supported yet");
  require_outcome(tiny.run("train", {"data.sets.0.path=/nowhere/train.json"}), kUsage, "/nowhere/train.json");
  require_outcome(tiny.run("train", {"data.tokenizer=/nowhere/tokenizer.json"}), kUsage, "/nowhere/tokenizer.json");
  require_outcome(tiny.run("train", {"modules.eyes.trainable=false", "modules.eyes.projector.trainable=false",
                                     "modules.ears.trainable=false", "modules.ears.projector.trainable=false",
                                     "modules.llm.trainable=false"}),
                  kUsage, "nothing is trainable");
}

TEST_CASE("bad data: an empty set and one without any answer end before training") {
  const TinyRun tiny;
  require_outcome(tiny.run("train", only(tiny, "")), kUsage, "own.jsonl");
  const std::string masked =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "loss": false}]})";
  for (const int ranks : {0, 2}) {
    require_outcome(tiny.run("train", only(tiny, masked + "\n"), {.ranks = ranks}), kUsage, "no_labels");
  }
}

TEST_CASE("bad data: placeholder counts, unsafe paths and missing media name the sample") {
  const TinyRun tiny;
  const std::string good = dialogue("hello", "world");
  struct Case {
    std::string line, fault;
  };
  const std::vector<Case> cases = {
      {dialogue("<image><image> what?", "left", R"("images": ["media/p0.png"])"), "placeholder_count"},
      {dialogue("what?", "left", R"("images": ["media/p0.png"])"), "placeholder_count"},
      {dialogue("<image>", "left", R"("images": ["../../../etc/passwd"])"), "unsafe_path"},
      {dialogue("<image>", "left", R"("images": ["nothing.png"])"), "missing_file"},
      {"{\"messages\": 7}\n", "bad_record"},
  };
  for (const Case& c : cases) {
    INFO(c.line);
    require_outcome(tiny.run("train", only(tiny, good + c.line)), kUsage, c.fault);
    const Outcome skipped =
        tiny.run("train", only(tiny, good + c.line, {"data.bad_samples=skip", "run.output_dir=skip", "resume=auto"}));
    require_outcome(skipped, 0, c.fault);
    std::filesystem::remove_all(tiny.folder() / "skip");
    const Outcome validated = tiny.run("validate", only(tiny, good + c.line));
    require_outcome(validated, kFailed, c.fault);
    REQUIRE_THAT(validated.out + validated.err, Contains("own.jsonl:2"));
  }
}

TEST_CASE("bad data: literal placeholders and special tokens in text are text") {
  const TinyRun tiny;
  const std::string lines =
      dialogue("write <image> and <|im_end|> please", "<image><audio><|im_start|>") + dialogue("a", "b");
  require_outcome(tiny.run("train", only(tiny, lines)), 0, "done: 3 steps");
}

TEST_CASE("bad media: wrong, cut, empty and huge files are faults of their samples") {
  const TinyRun tiny;
  const auto media = tiny.folder();
  write_text(media / "page.jpg", "<!DOCTYPE html><html><body>not found</body></html>");
  write_text(media / "empty.png", "");
  const std::string whole = read_text(media / "media" / "p0.png");
  write_text(media / "cut.png", whole.substr(0, whole.size() / 2));
  write_text(media / "short.wav",
             std::string("RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0", 44));
  struct Case {
    std::string media, fault;
  };
  const std::vector<Case> cases = {
      {R"("images": ["page.jpg"])", "not_an_image"},
      {R"("images": ["empty.png"])", "not_an_image"},
      {R"("audios": ["short.wav"])", "audio_too_short"},
  };
  for (const Case& c : cases) {
    const std::string slot = c.media.find("audios") != std::string::npos ? "<audio>" : "<image>";
    INFO(c.media);
    require_outcome(tiny.run("train", only(tiny, dialogue("a", "b") + dialogue(slot + " what?", "left", c.media))),
                    kUsage, c.fault);
  }
  // A picture whose header is sound fails when it is decoded: after planning, on whichever rank loads it.
  const std::string cut =
      dialogue("<image> what?", "left", R"("images": ["cut.png"])") + dialogue("a", "b") + dialogue("c", "d");
  for (const int ranks : {0, 2}) {
    INFO(ranks);
    require_outcome(tiny.run("train", only(tiny, cut, {"train.global_batch_size=3"}), {.ranks = ranks}), kFailed,
                    "corrupt_image");
    const Outcome skipped =
        tiny.run("train", only(tiny, cut, {"data.bad_samples=skip", "train.global_batch_size=3", "run.output_dir=cut"}),
                 {.ranks = ranks});
    require_outcome(skipped, 0, "corrupt_image");
    std::filesystem::remove_all(tiny.folder() / "cut");
  }
}

TEST_CASE("bad data: a sample that fails after planning leaves the others' gradients as they are") {
  const TinyRun tiny;
  const std::string whole = read_text(tiny.folder() / "media" / "p0.png");
  write_text(tiny.folder() / "cut.png", whole.substr(0, whole.size() / 2));
  const std::string good = dialogue("a", "b") + dialogue("c d e", "f g");
  const std::string broken = dialogue("<image> what?", "left", R"("images": ["cut.png"])");
  const auto loss_of = [&](const std::string& lines, const std::string& batch) {
    const Outcome o = tiny.run(
        "dump", only(tiny, lines, {"data.bad_samples=skip", "data.shuffle=false", "train.global_batch_size=" + batch}),
        {}, {"--out", (tiny.folder() / "step.h5").string()});
    INFO(o.text());
    REQUIRE(o.code == 0);
    const std::string text = o.out + o.err;
    const std::size_t at = text.find("step 1: loss");
    REQUIRE(at != std::string::npos);
    return text.substr(at, text.find(';', at) - at);  // loss, weight and gradient norm, as printed
  };
  REQUIRE(loss_of(good + broken, "3") == loss_of(good, "2"));
}

TEST_CASE("fewer samples than ranks and ranks with nothing to do simply work") {
  const TinyRun tiny;
  require_outcome(tiny.run("train", only(tiny, dialogue("a", "b"), {"train.global_batch_size=1"}), {.ranks = 3}), 0,
                  "done: 3 steps");
  const std::string mixed =
      dialogue("<image> what?", "left", R"("images": ["media/p0.png"])") + dialogue("only text", "here");
  require_outcome(
      tiny.run("train", only(tiny, mixed, {"train.global_batch_size=2", "run.output_dir=mixed"}), {.ranks = 2}), 0,
      "done: 3 steps");
}
