#include "checkpoint_model.h"

#include <catch2/catch.hpp>

#include <sys/stat.h>

#include <atomic>
#include <limits>
#include <thread>

using namespace mmt;
using namespace mmt::test;

TEST_CASE("a range of a box is cut into contiguous boxes in order") {
  const h5::Box box{{2, 1, 3}, {3, 4, 5}};
  for (std::int64_t first = 0; first <= 60; ++first) {
    for (std::int64_t count = 0; first + count <= 60; ++count) {
      std::int64_t at = first;
      const auto boxes = boxes_of_range(box, first, count);
      REQUIRE(boxes.size() <= 5);
      for (const h5::Box& b : boxes) {
        for (std::int64_t i = 0; i < num_elements(b.shape); ++i) {
          const Shape global = {9, 9, 9};
          REQUIRE(global_index(global, b, i) == global_index(global, box, at++));
        }
      }
      REQUIRE(at == first + count);
    }
  }
}

TEST_CASE("a checkpoint of any layout loads in any other") {
  for (const int save_ranks : {1, 2, 3}) {
    TempFolder temp;
    comm::run_threads(save_ranks, [&](comm::Communicator& world) {
      CheckpointWriter writer(world, in(temp.path()));
      save(world, writer, 7);
      save(world, writer, 9, 1);
    });
    CHECK(names_in(temp.path()) == std::set<std::string>{"latest", "step_00000007", "step_00000009"});
    for (const int load_ranks : {1, 2, 4}) {
      for (const int shift : {0, 1, 2, 3}) {
        comm::run_threads(load_ranks, [&](comm::Communicator& world) {
          const auto path = find_checkpoint(world, temp.path());
          MMT_CHECK(path == temp / "step_00000009", "{}", path.value_or("nothing"));
          check_load(world, *path, 9, shift);
          check_load(world, temp / "step_00000007", 7, shift);
        });
      }
    }
    // The index alone shows every tensor whole, under its name, in its type.
    const h5::File index = h5::File::open(temp / "step_00000009/index.h5");
    for (const Whole& w : kTensors) {
      const h5::Info info = index.info(w.name);
      CHECK(info.shape == w.shape);
      CHECK(info.dtype == w.dtype);
    }
    const CheckpointReader reader(temp / "step_00000009");
    CHECK_NOTHROW(reader.verify());
    const auto items = reader.tensors();
    CHECK(items.size() == kTensors.size());
    for (const auto& item : items) CHECK(item.frozen == (item.name == "model/eyes/patch.weight"));
    const TrainingState want = state_of(9);
    const TrainingState& got = reader.state();
    CHECK(got.updates == want.updates);
    CHECK(got.samples == want.samples);
    CHECK(got.seed == want.seed);
    CHECK(got.config == want.config);
    CHECK(got.instruction_set == want.instruction_set);
    CHECK(got.metrics == want.metrics);
    CHECK(got.notes == want.notes);
  }
}

TEST_CASE("types are converted on load and shapes are checked") {
  TempFolder temp;
  const auto world = comm::make_self();
  CheckpointWriter writer(*world, in(temp.path()));
  std::vector<float> a = {1.0f, 1.00390625f, 3.0e38f, -0.0f, 1.01171875f};
  std::vector<bf16> b = {bf16(1.5f), bf16(-2.25f)};
  SavedPart pa, pb;
  pa.name = "model/llm/a";
  pa.shape = {5};
  pa.box = {{0}, {5}};
  pa.data = Tensor(a.data(), DType::f32, {5});
  pb.name = "model/llm/b";
  pb.shape = {2};
  pb.box = {{0}, {2}};
  pb.data = Tensor(b.data(), DType::bf16, {2});
  writer.save(std::vector<SavedPart>{pa, pb}, state_of(1));
  const CheckpointReader reader(temp / "step_00000001");
  std::vector<bf16> a16(5);
  std::vector<float> b32(2);
  TensorPart la = pa, lb = pb;
  la.data = Tensor(a16.data(), DType::bf16, {5});
  lb.data = Tensor(b32.data(), DType::f32, {2});
  reader.read(la);
  reader.read(lb);
  for (std::size_t i = 0; i < 5; ++i) CHECK(a16[i].bits == bf16(a[i]).bits);
  CHECK(b32 == std::vector<float>{1.5f, -2.25f});
  TensorPart wrong = la;
  wrong.shape = {6};
  wrong.box = {{0}, {5}};
  CHECK(message_of([&] { reader.read(wrong); }).find("model/llm/a is f32[5], the model wants [6]") !=
        std::string::npos);
  wrong.name = "model/llm/c";
  CHECK(message_of([&] { reader.read(wrong); }).find("no tensor model/llm/c") != std::string::npos);
  CHECK_THROWS_AS(reader.read(wrong), ConfigError);
  // On several ranks, one rank's failure is thrown on all.
  std::atomic<int> told = 0;
  comm::run_threads(3, [&](comm::Communicator& all) {
    const CheckpointReader own(temp / "step_00000001");
    std::vector<float> memory(5);
    TensorPart p = pa;
    p.data = Tensor(memory.data(), DType::f32, {5});
    if (all.rank() == 1) p.name = "model/llm/missing";
    try {
      load_checkpoint(all, own, std::span(&p, 1));
    } catch (const ConfigError& e) {
      if (std::string(e.what()).find("rank 1: ") == 0) ++told;
    }
  });
  CHECK(told == 3);
}

TEST_CASE("parts that do not cover a tensor exactly once are refused on all ranks") {
  TempFolder temp;
  const auto failing = [&](const std::function<void(int, std::vector<SavedPart>&)>& change) {
    return message_of([&] {
      comm::run_threads(2, [&](comm::Communicator& world) {
        CheckpointWriter writer(world, in(temp.path()));
        save(world, writer, 1);
        Parts parts = make_parts(world.rank(), 2, 0);
        fill(parts, 2);
        change(world.rank(), parts.parts);
        writer.save(parts.parts, state_of(2));
      });
    });
  };
  const std::string missing = failing([](int rank, std::vector<SavedPart>& parts) {
    if (rank == 1) parts.erase(parts.begin());
  });
  INFO(missing);
  CHECK(missing.find("up_proj.weight") != std::string::npos);
  CHECK(missing.find("exactly once") != std::string::npos);
  const std::string twice = failing([](int rank, std::vector<SavedPart>& parts) {
    if (rank == 0) parts[3].is_owner = true;
  });
  INFO(twice);
  CHECK(twice.find("exactly once") != std::string::npos);
  const std::string shape = failing([](int rank, std::vector<SavedPart>& parts) {
    if (rank == 1) parts[0].shape[0] = 11;
  });
  INFO(shape);
  CHECK(shape.find("is f32[10,7] on rank 0 and f32[11,7] on rank 1") != std::string::npos);
  CHECK(names_in(temp.path()) == std::set<std::string>{"latest", "step_00000001"});
  comm::run_threads(1, [&](comm::Communicator& world) { check_load(world, temp / "step_00000001", 1); });
}

TEST_CASE("retention keeps the last and the round and the best") {
  std::vector<Complete> all;
  for (std::int64_t i = 1; i <= 10; ++i)
    all.push_back({step_name(100 * i), 100 * i, i, {{"accuracy", i == 4 ? 0.9 : 0.1}}});
  const auto kept = [&](const Retention& r, const std::string& newest = "step_00001000") {
    std::set<std::string> names;
    for (const Complete& c : all) names.insert(c.name);
    for (const std::string& name : to_delete(all, r, newest)) names.erase(name);
    std::set<std::int64_t> steps;
    for (const std::string& name : names) steps.insert(*parse_step(name));
    return steps;
  };
  using Steps = std::set<std::int64_t>;
  CHECK(kept({1, 0, {}, true}) == Steps{1000});
  CHECK(kept({3, 0, {}, true}) == Steps{800, 900, 1000});
  CHECK(kept({1, 400, {}, true}) == Steps{400, 800, 1000});
  CHECK(kept({2, 0, "accuracy", true}) == Steps{400, 900, 1000});
  CHECK(kept({1, 0, "accuracy", false}) == Steps{1000});
  CHECK(kept({1, 0, "absent", true}) == Steps{1000});
  CHECK(kept({0, 0, {}, true}).size() == 10);
  all[4].metrics["accuracy"] = std::numeric_limits<double>::quiet_NaN();
  CHECK(kept({1, 0, "accuracy", true}) == Steps{400, 1000});
  // What counts is when a checkpoint was written: a folder left by an earlier run has a higher step, but is older.
  all = {{step_name(900), 900, 1, {}}, {step_name(100), 100, 2, {}}};
  CHECK(kept({1, 0, {}, true}, "step_00000100") == Steps{100});

  TempFolder temp;
  const auto world = comm::make_self();
  CheckpointOptions options = in(temp.path());
  options.retention = {2, 4, {}, true};
  CheckpointWriter writer(*world, options);
  for (const std::int64_t step : {300, 1, 2, 3, 4, 5, 6}) save(*world, writer, step);
  CHECK(names_in(temp.path()) ==
        std::set<std::string>{"latest", "step_00000004", "step_00000005", "step_00000006", "step_00000300"});
  CHECK(*find_checkpoint(*world, temp.path()) == temp / "step_00000006");
}

TEST_CASE("frozen tensors are stored once") {
  TempFolder temp;
  const auto inode = [&](std::int64_t step, const char* file) {
    struct stat info {};
    const std::string path = temp / step_name(step) + "/" + file;
    REQUIRE(stat(path.c_str(), &info) == 0);
    return info.st_ino;
  };
  const char* const frozen = "rank_00000.frozen.h5";
  const auto world = comm::make_self();
  CheckpointOptions options = in(temp.path());
  options.retention.keep_last = 2;
  {
    CheckpointWriter writer(*world, options);
    for (const std::int64_t step : {1, 2}) save(*world, writer, step);
    CHECK(inode(1, frozen) == inode(2, frozen));
    CHECK(inode(1, "rank_00000.h5") != inode(2, "rank_00000.h5"));
    save(*world, writer, 3);  // deletes the first
  }
  const auto stored = inode(3, frozen);
  {
    CheckpointWriter resumed(*world, options);  // another process: by the checksums
    save(*world, resumed, 4);
    CHECK(inode(4, frozen) == stored);
    CHECK_NOTHROW(check_load(*world, temp / "step_00000004", 4));
  }
  {
    CheckpointWriter other(*world, options);  // other values under the same names
    Parts parts = make_parts(0, 1, 0);
    fill(parts, 5);
    for (const SavedPart& p : parts.parts) {
      if (p.frozen) p.data.as<bf16>()[3] = bf16(77.0f);
    }
    other.save(parts.parts, state_of(5));
    CHECK(inode(5, frozen) != stored);
  }
  options.embed_frozen = true;
  CheckpointWriter embedding(*world, options);
  for (const std::int64_t step : {6, 7}) save(*world, embedding, step);
  CHECK(inode(6, frozen) != inode(7, frozen));
}

TEST_CASE("an asynchronous save holds the values of its moment and reports failure later") {
  TempFolder temp;
  std::atomic<bool> fail = false;
  std::atomic<int> told = 0;
  comm::run_threads(3, [&](comm::Communicator& world) {
    CheckpointOptions options = in(temp.path());
    options.async = true;
    options.after = [&](std::string_view what) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (fail && what == "rank_00001.h5") throw Error("the disk went away");
    };
    CheckpointWriter writer(world, options);
    Parts parts = make_parts(world.rank(), 3, 0);
    fill(parts, 1);
    writer.save(parts.parts, state_of(1));
    MMT_CHECK(writer.saving(), "rank {}", world.rank());
    fill(parts, 2, false);  // training goes on
    int boundaries = 0;
    while (!writer.poll()) {
      ++boundaries;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    MMT_CHECK(boundaries > 0 && !writer.saving(), "{} boundaries", boundaries);
    check_load(world, temp / "step_00000001", 1);
    writer.save(parts.parts, state_of(2));
    writer.finish();
    check_load(world, temp / "step_00000002", 2);
    world.barrier();
    fail = true;
    fill(parts, 3, false);
    writer.save(parts.parts, state_of(3));
    try {
      while (!writer.poll()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    } catch (const Error& e) {
      if (std::string(e.what()) == "rank 1: saving step_00000003: the disk went away") ++told;
    }
    MMT_CHECK(!writer.saving(), "rank {}", world.rank());
    world.barrier();
    fail = false;
    MMT_CHECK(*find_checkpoint(world, temp.path()) == temp / "step_00000002", "rank {}", world.rank());
    writer.save(parts.parts, state_of(3));
    writer.save(parts.parts, state_of(4));  // finishes the one before
    writer.finish();
  });
  CHECK(told == 3);
  CHECK(names_in(temp.path()) == std::set<std::string>{"latest", "step_00000002", "step_00000003", "step_00000004"});
}
