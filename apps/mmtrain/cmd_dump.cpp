// `mmtrain dump`: one step in names and shapes that no layout changes.
#include "apps/mmtrain/commands.h"
#include "apps/mmtrain/trainer.h"
#include "core/hdf5/store.h"
#include "core/log.h"
#include "parallel/run/checkpoint_pieces.h"

#include <algorithm>
#include <cmath>

namespace mmt::app {
namespace {

/// By sample of the global batch, on every rank.
struct SampleSums {
  std::vector<double> loss, weight;
};

SampleSums gather_samples(const Trainer& trainer, comm::Communicator& world) {
  const std::size_t n = trainer.last_step().samples.size();
  SampleSums sums{std::vector<double>(n, 0.0), std::vector<double>(n, 0.0)};
  for (const SampleResult& r : trainer.last_results()) {
    sums.loss[static_cast<std::size_t>(r.sample)] = r.loss;
    sums.weight[static_cast<std::size_t>(r.sample)] = r.weight;
  }
  for (std::vector<double>* v : {&sums.loss, &sums.weight}) {
    if (n > 0) world.all_reduce(Tensor(v->data(), DType::f64, {static_cast<std::int64_t>(n)}), comm::ReduceOp::sum);
  }
  return sums;
}

std::string group_of(const PlannedSample& sample) { return fmt::format("samples/{}", sample.place); }

void write_vector(h5::File& file, const std::string& name, const std::vector<std::int32_t>& values) {
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(values.size())};
  file.write(name, DType::i32, shape, values.data());
}

/// Sends each sample's ids and labels (and with `logits` its (rows, vocabulary) f32) to rank 0, which writes them.
class SampleCollector {
 public:
  SampleCollector(Trainer& trainer, comm::Communicator& world, h5::File* file)
      : trainer_(trainer), world_(world), file_(file) {
    const PlannedStep& step = trainer.last_step();
    owner_.assign(step.samples.size(), 0);
    const Model& model = trainer.model();
    const int sink = model.last_stage(model.num_encoders());
    for (std::size_t lane = 0; lane < step.assignment.samples.size(); ++lane) {
      for (const auto& block : step.assignment.samples[lane]) {
        for (const std::int32_t i : block)
          owner_[static_cast<std::size_t>(i)] = model.layout.ranks_of(sink, static_cast<int>(lane)).front();
      }
    }
  }

  void texts() {
    const PlannedStep& step = trainer_.last_step();
    for (std::size_t i = 0; i < owner_.size(); ++i) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(step.metas[i].rows)), labels(ids.size());
      if (owner_[i] == world_.rank()) {
        const auto at =
            static_cast<std::size_t>(std::ranges::find(step.own, static_cast<std::int32_t>(i)) - step.own.begin());
        ids = trainer_.last_samples()[at].input_ids;
        labels = trainer_.last_samples()[at].labels;
      }
      bring(i, ids);
      bring(i, labels);
      if (file_ == nullptr) continue;
      write_vector(*file_, group_of(step.samples[i]) + "/input_ids", ids);
      write_vector(*file_, group_of(step.samples[i]) + "/labels", labels);
    }
  }

  /// `own[i]`: logits of this rank's sample i of the batch.
  void logits(std::map<std::int32_t, std::vector<float>>& own, std::int64_t vocabulary) {
    const PlannedStep& step = trainer_.last_step();
    for (std::size_t i = 0; i < owner_.size(); ++i) {
      const std::int64_t rows = step.metas[i].rows;
      std::vector<float> values(static_cast<std::size_t>(rows * vocabulary));
      if (owner_[i] == world_.rank()) values = own.at(static_cast<std::int32_t>(i));
      bring(i, values);
      if (file_ != nullptr)
        file_->write(group_of(step.samples[i]) + "/logits", DType::f32, std::vector<std::int64_t>{rows, vocabulary},
                     values.data());
    }
  }

 private:
  /// From the owner to rank 0. A broadcast, since the owner of many samples would send faster than rank 0 writes.
  template <class T> void bring(std::size_t sample, std::vector<T>& values) {
    if (owner_[sample] == 0) return;
    world_.broadcast(Tensor(values.data(), dtype_of<T>, {static_cast<std::int64_t>(values.size())}), owner_[sample]);
  }

  Trainer& trainer_;
  comm::Communicator& world_;
  h5::File* file_;
  std::vector<int> owner_;
};

/// The gradients of `/loss`, each parameter once and whole: every rank hands the parts that it owns to rank 0.
double write_grads(h5::File* file, Model& model, comm::Communicator& world) {
  std::map<std::string, const run::ParamSpec*> names;
  for (const run::Stage& stage : model.stages) {
    for (const auto& unit : stage.units) {
      for (const run::ParamSpec& p : unit->plan().params) {
        if (p.trainable) names.emplace(canonical_name(p), &p);
      }
    }
  }
  std::map<std::string, const run::ParamState*> own;
  for (const run::PlacedParam& p : model.params(true)) {
    if (!p.first_use || p.copies.index != 0) continue;
    own[p.name] = p.state;
  }
  double squares = 0.0;
  for (const auto& [name, spec] : names) {
    std::vector<float> whole(world.rank() == 0 ? static_cast<std::size_t>(run::num_elements(spec->shape)) : 0);
    const std::size_t dims = spec->shape.size();
    // By rank: elements, first, box.
    const std::size_t fields = 2 + 2 * dims;
    std::vector<std::int64_t> mine(fields, 0), all(fields * static_cast<std::size_t>(world.size()));
    const auto found = own.find(name);
    if (found != own.end()) {
      mine[0] = found->second->owned_count;
      mine[1] = found->second->owned_first;
      std::ranges::copy(found->second->spec->box.offset, mine.begin() + 2);
      std::ranges::copy(found->second->spec->box.shape, mine.begin() + 2 + static_cast<std::ptrdiff_t>(dims));
    }
    world.all_gather(Tensor(mine.data(), DType::i64, {static_cast<std::int64_t>(mine.size())}),
                     Tensor(all.data(), DType::i64, {static_cast<std::int64_t>(all.size())}));
    for (int r = 0; r < world.size(); ++r) {
      const std::int64_t* head = all.data() + static_cast<std::size_t>(r) * fields;
      if (head[0] == 0) continue;
      if (world.rank() == 0) {
        std::vector<float> values(static_cast<std::size_t>(head[0]));
        if (r == 0) {
          std::ranges::copy(found->second->grad.span<float>(), values.begin());
        } else {
          world.recv(Tensor(values.data(), DType::f32, {head[0]}), r);
        }
        const h5::Box box{{head + 2, head + 2 + dims}, {head + 2 + dims, head + fields}};
        run::put_range(spec->shape, box, head[1], values, whole);
      } else if (world.rank() == r) {
        world.send(found->second->grad, 0);
      }
    }
    for (const float g : whole) squares += static_cast<double>(g) * static_cast<double>(g);
    if (file != nullptr) file->write("grads/" + name, DType::f32, spec->shape, whole.data());
  }
  return std::sqrt(squares);
}

}  // namespace

int run_dump(Job& job, const Arguments& a) {
  Config config = job.read(a.config, a.overrides);
  Trainer trainer(config, job);
  if (trainer.total_steps() < a.step) {
    throw Agreed(kUsage, fmt::format("--step {}, but the run has {} steps: raise train.{} (--set)", a.step,
                                     trainer.total_steps(), config.train.steps ? "steps" : "epochs"));
  }
  trainer.load_initial_weights();
  StepFigures figures;
  for (std::int64_t step = 1; step <= a.step; ++step) {
    if (step == a.step) trainer.set_update(false);
    figures = trainer.step();
    if (!figures.begun) throw Agreed(kRequeue, "stopped");
  }
  comm::Communicator& world = job.world();
  std::optional<h5::File> file;
  in_agreement(world, [&] {
    if (job.rank() == 0) file.emplace(h5::File::create(a.out));
  });
  const SampleSums sums = gather_samples(trainer, world);
  SampleCollector collector(trainer, world, file ? &*file : nullptr);
  collector.texts();
  if (a.logits) {
    std::map<std::int32_t, std::vector<float>> own = trainer.last_logits();
    collector.logits(own, trainer.vocabulary());
  }
  const double norm = write_grads(file ? &*file : nullptr, trainer.model(), world);
  if (file) {
    const PlannedStep& step = trainer.last_step();
    file->write_scalar("loss", figures.loss);
    file->write_scalar("weight", figures.weight);
    file->write_scalar("grad_norm", norm);
    for (std::size_t i = 0; i < step.samples.size(); ++i) {
      file->write_scalar(group_of(step.samples[i]) + "/loss", sums.loss[i]);
      file->write_scalar(group_of(step.samples[i]) + "/weight", sums.weight[i]);
    }
    file->set_attribute("/", "step", a.step);
    file->close();
  }
  log::info("step {}: loss {:.6f} over weight {}, gradient norm {:.6f}; written to {}", a.step, figures.loss,
            figures.weight, norm, a.out);
  return kDone;
}

}  // namespace mmt::app
