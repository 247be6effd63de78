#include "checkpoint_model.h"

#include <catch2/catch.hpp>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

using namespace mmt;
using namespace mmt::test;

namespace {

// Runs f in a process of its own, which ends without any clean-up; returns its exit code.
int in_child(const std::function<int()>& f) {
  const pid_t pid = fork();
  if (pid == 0) {
    int code = 99;
    try {
      code = f();
    } catch (const std::exception& e) {
      fprintf(stderr, "%s\n", e.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("killed between any two writes the last checkpoint loads") {
  for (const bool same_step : {false, true}) {
    int points = 0;
    for (int kill_at = 0;; ++kill_at) {
      TempFolder temp;
      const std::int64_t second = same_step ? 1 : 2;
      const int code = in_child([&] {
        const auto world = comm::make_self();
        CheckpointOptions options = in(temp.path());
        options.retention.keep_last = 1;
        int calls = -1;
        options.after = [&](std::string_view) {
          if (calls >= 0 && calls++ == kill_at) _exit(9);
        };
        CheckpointWriter writer(*world, options);
        save(*world, writer, 1);
        calls = 0;
        Parts parts = make_parts(0, 1, 0);
        fill(parts, 2);
        writer.save(parts.parts, state_of(second));
        return 0;
      });
      REQUIRE((code == 9 || code == 0));
      log::set_sink([](log::Level, int, std::string_view) {});
      const auto world = comm::make_self();
      const auto path = find_checkpoint(*world, temp.path());
      log::set_sink({});
      REQUIRE(path.has_value());
      CAPTURE(kill_at, *path);
      if (same_step) {
        // Either the old values or the new ones, whole.
        const CheckpointReader reader(*path);
        const bool old_values = message_of([&] { check_load(*world, *path, 1); }).empty();
        Parts parts = make_parts(0, 1, 0);
        load_checkpoint(*world, reader, std::vector<TensorPart>(parts.parts.begin(), parts.parts.end()));
        bool new_values = true;
        for (const SavedPart& p : parts.parts) {
          for (std::int64_t i = 0; i < p.data.numel(); ++i)
            new_values = new_values && get(p.data, i) == value(p.name, i, 2);
        }
        CHECK(old_values != new_values);
        CHECK((code != 0 || new_values));
      } else {
        const std::int64_t step = *parse_step(fs::path(*path).filename().string());
        CHECK((code != 0 || step == 2));
        CHECK_NOTHROW(check_load(*world, *path, step));
      }
      // The next save clears up what was left and works.
      CheckpointWriter writer(*world, in(temp.path()));
      save(*world, writer, 3);
      CHECK_NOTHROW(check_load(*world, *find_checkpoint(*world, temp.path()), 3));
      for (const std::string& name : names_in(temp.path())) CHECK((name == "latest" || parse_step(name).has_value()));
      if (code == 0) break;
      ++points;
    }
    CHECK(points >= 6);
  }
}

TEST_CASE("a flipped byte names the tensor") {
  TempFolder temp;
  const auto world = comm::make_self();
  CheckpointWriter writer(*world, in(temp.path()));
  save(*world, writer, 1);
  const std::string path = temp / "step_00000001";
  for (const Whole& w : kTensors) {
    const std::string file = path + (w.frozen ? "/rank_00000.frozen.h5" : "/rank_00000.h5");
    Parts parts = make_parts(0, 1, 0);
    fill(parts, 1);
    const SavedPart* part = nullptr;
    for (const SavedPart& p : parts.parts) {
      if (p.name == w.name) part = &p;
    }
    std::string content;
    {
      std::ifstream in_file(file, std::ios::binary);
      content.assign(std::istreambuf_iterator<char>(in_file), {});
    }
    const std::string bytes(static_cast<const char*>(part->data.data), static_cast<std::size_t>(part->data.bytes()));
    const std::size_t at = content.find(bytes);
    REQUIRE(at != std::string::npos);
    const auto write_byte = [&](char c) {
      std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
      f.seekp(static_cast<std::streamoff>(at + bytes.size() / 2));
      f.put(c);
    };
    const char old = content[at + bytes.size() / 2];
    write_byte(static_cast<char>(old ^ 0x10));
    const std::string text = message_of([&] { check_load(*world, path, 1); });
    INFO(text);
    CHECK(text.find(w.name) != std::string::npos);
    CHECK(message_of([&] { CheckpointReader(path).verify(); }).find(w.name) != std::string::npos);
    write_byte(old);
    CHECK_NOTHROW(check_load(*world, path, 1));
  }
}

TEST_CASE("a newer format is refused and damaged folders are passed over with their names") {
  TempFolder temp;
  const auto world = comm::make_self();
  CheckpointOptions options = in(temp.path());
  options.retention.keep_last = 0;
  CheckpointWriter writer(*world, options);
  CHECK_FALSE(find_checkpoint(*world, temp / "none").has_value());
  for (const std::int64_t step : {1, 2, 3}) save(*world, writer, step);
  std::vector<std::string> lines;
  const auto find = [&] {
    lines.clear();
    log::set_sink([&](log::Level, int, std::string_view text) { lines.emplace_back(text); });
    std::optional<std::string> found;
    const std::string text = message_of([&] { found = find_checkpoint(*world, temp.path()); });
    log::set_sink({});
    return found ? fs::path(*found).filename().string() : text;
  };
  const auto told = [&](const std::string& what) {
    for (const std::string& line : lines) {
      if (line.find(what) != std::string::npos) return true;
    }
    return false;
  };
  CHECK(find() == "step_00000003");
  CHECK(lines.empty());
  fs::create_directory(temp / "step_00000004.tmp");
  fs::create_directory(temp / "step_00000005");
  CHECK(find() == "step_00000003");
  CHECK(told("step_00000004.tmp is half written"));
  CHECK(told("step_00000005: no index.h5"));
  fs::resize_file(temp / "step_00000003/rank_00000.h5", 1000);
  CHECK(find() == "step_00000002");
  CHECK(told("has 1000 bytes"));
  CHECK_THROWS_AS(CheckpointReader(temp / "step_00000003"), ConfigError);
  {
    h5::File index = h5::File::create(temp / "step_00000003/index.h5");
    index.set_attribute("/", "format_version", kCheckpointVersion + 1);
    index.close();
  }
  CHECK(find().find("use a newer version") != std::string::npos);
  CHECK_THROWS_AS(find_checkpoint(*world, temp.path()), ConfigError);
  std::ofstream(temp / "latest") << "../../etc\n";
  CHECK(find() == "step_00000002");
  CHECK(told("latest does not name a checkpoint"));
  std::ofstream(temp / "step_00000002/config.yaml") << "changed";
  CHECK(message_of([&] { CheckpointReader(temp / "step_00000002"); }).find("was changed") != std::string::npos);
}

TEST_CASE("a full disk leaves the last checkpoint") {
  // A limit on the size of files stands for the full disk: writes fail in the middle.
  for (const bool async : {false, true}) {
    TempFolder temp;
    const int code = in_child([&] {
      const auto world = comm::make_self();
      CheckpointOptions options = in(temp.path());
      options.async = async;
      options.retention.keep_last = 1;
      CheckpointWriter writer(*world, options);
      const Parts first = save(*world, writer, 1);
      writer.finish();
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{4096, 4096};
      setrlimit(RLIMIT_FSIZE, &limit);
      const std::string text = message_of([&] {
        const Parts second = save(*world, writer, 2);
        writer.finish();
      });
      return text.find("saving step_00000002") != std::string::npos && text.find("rank_00000") != std::string::npos ? 7
                                                                                                                    : 1;
    });
    CHECK(code == 7);
    const auto world = comm::make_self();
    CHECK(names_in(temp.path()) == std::set<std::string>{"latest", "step_00000001"});
    CHECK_NOTHROW(check_load(*world, *find_checkpoint(*world, temp.path()), 1));
  }
}
