#include "parallel/run/executor.h"

#include "parallel/run/executor_impl.h"

namespace mmt::run {

Executor::Executor(comm::Communicator& world, const StageGraph& graph, std::vector<StageSetup> stages,
                   const Stream& stream, const ExecutorOptions& options)
    : impl_(std::make_unique<Impl>(world, graph, std::move(stages), stream, options)) {}
Executor::~Executor() = default;
void Executor::run(const plan::Program& program, std::span<StepData> steps, const StepHooks& hooks, Mode mode) {
  impl_->run(program, steps, hooks, mode);
}
std::span<const TraceRow> Executor::trace() const { return impl_->trace(); }
double Executor::started() const { return impl_->started(); }
double Executor::sink_seconds() const { return impl_->sink_seconds(); }
std::int64_t Executor::capacity_bytes() const {
  std::int64_t bytes = 0;
  for (const ArenaUse& a : impl_->arenas()) bytes += a.capacity;
  return bytes;
}
std::int64_t Executor::peak_bytes() const {
  std::int64_t bytes = 0;
  for (const ArenaUse& a : impl_->arenas()) bytes += a.peak;
  return bytes;
}
std::vector<Executor::ArenaUse> Executor::arenas() const { return impl_->arenas(); }
void Executor::set_logits_sink(std::function<void(int, std::int64_t, const Tensor&)> sink) {
  impl_->set_logits_sink(std::move(sink));
}

}  // namespace mmt::run
