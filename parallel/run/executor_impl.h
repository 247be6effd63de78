// The executor's insides: blocks in flight here, actions in executor_actions.cpp, transfers in executor_transfers.cpp.
#pragma once

#include "parallel/run/executor.h"

#include "kernels/elementwise.h"
#include "kernels/gather.h"
#include "parallel/comm/tracing.h"
#include "parallel/comm/values.h"
#include "parallel/run/slots.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>

namespace mmt::run {

using plan::Action;
using plan::Edge;
using plan::Kind;
using plan::Route;
using plan::RouteSegment;
using plan::StageGraph;

inline double thread_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

inline std::int64_t message_rows(std::span<const RouteSegment> segments) {
  std::int64_t rows = 0;
  for (const RouteSegment& s : segments) rows += s.count;
  return rows;
}

/// A stage with its arenas, its blocks in flight and its inner communicators.
struct Place {
  Place(const StageSetup& s, const Stream& stream, bool check_events)
      : setup(s),
        layout(s),
        memory(stage_memory(s, stream)),
        kept(fmt::format("kept of stage {}", s.id), s.live.kept, static_cast<std::size_t>(memory.kept)),
        held(fmt::format("held of stage {}", s.id), s.live.held, static_cast<std::size_t>(memory.held)),
        stash(fmt::format("stash of stage {}", s.id), s.live.stash, static_cast<std::size_t>(memory.stash)),
        ports(fmt::format("ports of stage {}", s.id), s.live.ports, static_cast<std::size_t>(memory.ports)),
        restored(fmt::format("restored of stage {}", s.id), s.live.restored,
                 static_cast<std::size_t>(memory.restored)) {
    comms = s.comms;
    if (!check_events) return;
    for (std::size_t axis = 0; axis < comms.size(); ++axis) {
      if (comms[axis] == nullptr) continue;
      traced.push_back(comm::make_tracing(*comms[axis], trace));
      comms[axis] = traced.back().get();
    }
  }

  StageSetup setup;
  StageLayout layout;
  StageMemory memory;
  ArenaPool kept, held, stash, ports, restored;
  std::map<std::pair<std::int64_t, int>, Slot> slots;  ///< by absolute step and block
  comm::CommTrace trace;
  std::vector<std::unique_ptr<comm::Communicator>> traced;
  std::array<comm::Communicator*, plan::kNumAxes> comms{};
};

class Executor::Impl {
 public:
  Impl(comm::Communicator& world, const StageGraph& graph, std::vector<StageSetup> stages, const Stream& stream,
       const ExecutorOptions& options)
      : world_(world), stream_(stream), options_(options) {
    std::size_t work = 0;
    for (const StageSetup& setup : stages) {
      places_.emplace(setup.id, std::make_unique<Place>(setup, stream, options.check_events));
      work = std::max(work, static_cast<std::size_t>(places_.at(setup.id)->memory.work));
    }
    work_ = Arena("work", work);
    for (const Edge& edge : graph.edges) {
      channels_.emplace_back();
      for (const bool back : {false, true}) {
        if (back && !edge.needs_grad) continue;
        channels_.back()[back ? 1 : 0] = make_channel(graph, edge, back);
      }
    }
  }

  void run(const plan::Program& program, std::span<StepData> steps, const StepHooks& hooks, Mode mode) {
    steps_ = steps;
    mode_ = mode;
    trace_.clear();
    sink_seconds_ = 0.0;
    trace_.reserve(program.actions.size());
    const auto start = std::chrono::steady_clock::now();
    started_ = std::chrono::duration<double>(start.time_since_epoch()).count();
    const auto since = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    const Doing doing(*this);
    for (const Action& action : program.actions) {
      TraceRow row{action, since(), 0.0, thread_seconds()};
      current_ = &action;
      try {
        execute(action, hooks);
      } catch (const std::logic_error& e) {
        throw std::logic_error(fmt::format("{}: {}", to_string(action), e.what()));
      }
      world_.poll();
      row.end = since();
      row.thread_seconds = thread_seconds() - row.thread_seconds;
      trace_.push_back(row);
    }
    current_ = nullptr;
    ++step_;
    for (const auto& [id, place] : places_) {
      for (const auto& [key, slot] : place->slots) {
        MMT_CHECK(key.first >= step_, "stage {} still holds block {} after the step", id, key.second);
      }
    }
  }

  std::span<const TraceRow> trace() const { return trace_; }
  double started() const { return started_; }
  double sink_seconds() const { return sink_seconds_; }

  std::vector<ArenaUse> arenas() const {
    std::vector<ArenaUse> list;
    const auto add = [&](const std::string& name, std::size_t capacity, std::size_t peak) {
      list.push_back({name, static_cast<std::int64_t>(capacity), static_cast<std::int64_t>(peak)});
    };
    add(work_.name(), work_.capacity(), work_.peak());
    for (const auto& [id, p] : places_) {
      for (const ArenaPool* pool : {&p->kept, &p->held, &p->stash, &p->ports, &p->restored})
        add(pool->name(), pool->capacity(), pool->peak());
    }
    return list;
  }
  void set_logits_sink(std::function<void(int, std::int64_t, const Tensor&)> sink) { logits_sink_ = std::move(sink); }

 private:
  /// While a program runs, waits of this rank name its action.
  struct Doing {
    explicit Doing(Impl& impl) : world(impl.world_) {
      world.set_doing(
          [&impl] { return impl.current_ == nullptr ? std::string("no action") : to_string(*impl.current_); });
    }
    ~Doing() { world.set_doing({}); }
    Doing(const Doing&) = delete;
    Doing& operator=(const Doing&) = delete;
    comm::Communicator& world;
  };

  // ---- slots

  Place& place(int stage) { return *places_.at(stage); }
  StepData& step_of(const Action& a) { return steps_[static_cast<std::size_t>(a.step_ahead)]; }
  const StageGraph& graph_of(const Action& a) { return *step_of(a).graph; }
  Rows& rows_of_block(const Action& a, int stage, int block) {
    return step_of(a).rows[static_cast<std::size_t>(stage)][static_cast<std::size_t>(block)];
  }
  /// Whether gradients of this stage's blocks are computed in this run.
  bool backward_of(const Action& a, int stage) {
    return mode_ == Mode::train && graph_of(a).stages[static_cast<std::size_t>(stage)].needs_backward;
  }

  Slot& slot(const Action& a, int stage, int block) {
    Place& p = place(stage);
    const auto [at, fresh] = p.slots.try_emplace({step_ + a.step_ahead, block});
    Slot& s = at->second;
    if (!fresh) return s;
    s.ports = p.ports.take();
    s.in.resize(p.layout.ports.size());
    s.d_in.resize(p.layout.ports.size());
    s.saved.resize(p.layout.num_units());
    const plan::BlockReaders readers = plan::readers_of(graph_of(a), stage, block, world_.rank());
    s.out_readers = readers.out;
    s.returns = readers.returns;
    s.grad_readers = readers.grads;
    return s;
  }

  void release_if_done(const Action& a, int stage, int block) {
    Place& p = place(stage);
    const auto at = p.slots.find({step_ + a.step_ahead, block});
    Slot& s = at->second;
    if (!s.computed || s.out_readers > 0 || s.grad_readers > 0) return;
    p.ports.give_back(s.ports);
    p.slots.erase(at);
  }

  const Route& route(const Action& a, int edge, int block) {
    return graph_of(a).routes[static_cast<std::size_t>(edge)][static_cast<std::size_t>(block)];
  }
  int port_of(int stage, const std::string& name) {
    const auto& ports = place(stage).layout.ports;
    const auto found = std::ranges::find(ports, name, &Stage::Port::name);
    MMT_CHECK(found != ports.end(), "stage {} has no port {}", stage, name);
    return static_cast<int>(found - ports.begin());
  }
  const PortPlan& port_plan(int stage, int port) {
    const StageLayout& layout = place(stage).layout;
    const Stage::Port& at = layout.ports[static_cast<std::size_t>(port)];
    return layout.plan(static_cast<std::size_t>(at.unit)).inputs[static_cast<std::size_t>(at.port)];
  }
  std::int64_t port_rows(const Action& a, int stage, int port, int block) {
    const Rows& rows = rows_of_block(a, stage, block);
    const PortPlan& plan = port_plan(stage, port);
    if (plan.count != RowCount::port) return rows_of(plan.count, rows.size, 0);
    return rows.port_dst[static_cast<std::size_t>(port)].rows();
  }

  // ---- actions (executor_actions.cpp)

  void execute(const Action& a, const StepHooks& hooks) {
    switch (a.kind) {
      case Kind::load:
        if (hooks.load) hooks.load(a.stage, a.block);
        return;
      case Kind::forward: return forward(a);
      case Kind::recompute: return recompute(a);
      case Kind::backward_input: return backward(a, false);
      case Kind::backward: return backward(a, true);
      case Kind::backward_weight: return backward_weight(a);
      case Kind::send: return a.transposed ? send_grads(a) : send_rows(a);
      case Kind::recv: return a.transposed ? recv_grads(a) : recv_rows(a);
      case Kind::tie: return hooks.tie(a.block);
      case Kind::reduce: return hooks.reduce(a.stage, a.block);
      case Kind::optimize: return hooks.optimize(a.stage);
    }
  }

  Ctx context(const Action& a, Place& p, std::size_t unit) {
    Ctx ctx;
    ctx.stream = stream_;
    ctx.rows = &rows_of_block(a, a.stage, a.block);
    ctx.params = &p.setup.store->unit(static_cast<int>(unit));
    ctx.scratch = &work_;
    ctx.comms = p.comms;
    ctx.mode = mode_;
    ctx.seed = options_.seed;
    ctx.step = static_cast<std::uint32_t>(step_of(a).number);
    ctx.loss_scale = step_of(a).loss_scale;
    if (logits_sink_) {
      logits_chunk_ = [this, block = a.block](std::int64_t first, const Tensor& logits) {
        logits_sink_(block, first, logits);
      };
      ctx.logits = &logits_chunk_;
    }
    return ctx;
  }

  Tensor take(Arena& arena, const PortPlan& port, const Rows& rows, std::int64_t count) {
    return arena.take(port.dtype, {rows_of(port.count, rows.size, count), port.cols});
  }
  Tensor take(Arena& arena, const TensorSpec& spec, const Rows& rows) {
    return arena.take(spec.dtype, {rows_of(spec.count, rows.size, 0), spec.cols});
  }

  /// Gives a unit's declared tensors of one life memory from `arena`.
  void take_tensors(const UnitPlan& unit, Life life, Arena& arena, const Rows& rows, Saved& saved) {
    saved.tensors.resize(unit.tensors.size());
    for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
      if (unit.tensors[t].life == life) saved.tensors[t] = take(arena, unit.tensors[t], rows);
    }
  }
  static void drop_tensors(const UnitPlan& unit, Life life, Saved& saved) {
    for (std::size_t t = 0; t < saved.tensors.size(); ++t) {
      if (unit.tensors[t].life == life) saved.tensors[t] = Tensor();
    }
  }

  void forward(const Action& a);
  std::array<Tensor, 2> chain_buffers(const Place& p, const Rows& rows);
  static Tensor in_buffer(const Tensor& buffer, const PortPlan& port, const Rows& rows);
  Tensor forward_output(Place& p, Slot& s, const Rows& rows, const std::array<Tensor, 2>& turn, std::size_t u,
                        bool saves);
  /// Makes what the forward did not store again, in these arenas.
  void restore(const Action& a, Place& p, Slot& s, std::size_t u, Arena& kept, Arena& held);
  /// What R restored for BW outlives the backward of the input in `stash`.
  void move_held(Place& p, Slot& s, std::size_t u, Arena& stash, const Rows& rows);
  void recompute(const Action& a);
  void backward(const Action& a, bool with_weights);
  Tensor output_gradient(Place& p, Slot& s, const Rows& rows);
  /// backward_weight of one unit. A sink's parameter gradients were written by its forward.
  void weights(const Action& a, Place& p, Slot& s, std::size_t u);
  void backward_weight(const Action& a);
  void finish(const Action& a, Slot& s);
  template <class F> void call(const Action& a, Place& p, std::size_t u, Phase phase, F&& f);
  void check_events(const Action& a, Place& p, std::size_t u, Phase phase, std::size_t before);

  // ---- transfers (executor_transfers.cpp)

  /// The ranks of an edge's two stages in one direction, with room for what they send ahead.
  struct Channel {
    std::unique_ptr<comm::Communicator> comm;  ///< null on other ranks
    std::map<int, int> rank_of;                ///< by world rank
  };
  Channel make_channel(const StageGraph& graph, const Edge& edge, bool back);
  Channel& channel(const Action& a);
  const Edge& edge_of(const Action& a);
  /// Sends the rows that `place_of` finds for each segment, as one packed message.
  template <class F> void send_message(const Action& a, int to, std::span<const RouteSegment> segments, DType dtype,
                                       std::int64_t cols, F&& place_of) {
    const ArenaScope scope(work_);
    const Tensor packed = work_.take(dtype, {message_rows(segments), cols});
    std::int64_t at = 0;
    for (const RouteSegment& s : segments) {
      ops::copy(stream_, packed.row_range(at, s.count), place_of(s));
      at += s.count;
    }
    const Channel& c = channel(a);
    c.comm->send(packed, c.rank_of.at(to), stream_);
  }
  template <class F> void recv_message(const Action& a, int from, std::span<const RouteSegment> segments, DType dtype,
                                       std::int64_t cols, F&& place_of) {
    const ArenaScope scope(work_);
    const Tensor packed = work_.take(dtype, {message_rows(segments), cols});
    const Channel& c = channel(a);
    c.comm->recv(packed, c.rank_of.at(from), stream_);
    std::int64_t at = 0;
    for (const RouteSegment& s : segments) {
      ops::copy(stream_, place_of(s), packed.row_range(at, s.count));
      at += s.count;
    }
  }
  /// Completes a buffer of which each tp rank holds an even share of the rows. A row-sharded port keeps it so.
  void gather_shares(Place& p, const PortPlan& port, const Tensor& buffer);
  /// Of `own_rows` that this rank holds of a block, the first one's place in the block.
  static std::int64_t first_row(const Place& p, const PortPlan& port, std::int64_t own_rows);
  void send_rows(const Action& a);
  void recv_rows(const Action& a);
  const PortPlan& output_plan(int stage);
  Tensor out_rows(const Action& a, int producer, const RouteSegment& seg);
  /// One transfer of consumer block a.block has read the producer's blocks.
  void read_out(const Action& a, int producer);
  void send_grads(const Action& a);
  void recv_grads(const Action& a);
  /// Adds what came back to d_out of the blocks that the route read, in the order of the route. `returned` begins with
  /// what the lane sent as row `before`.
  void add_returned(const Action& a, const Route& r, const std::vector<int>& lane, const Tensor& returned,
                    std::int64_t before);

  comm::Communicator& world_;
  Stream stream_;
  ExecutorOptions options_;
  std::vector<std::array<Channel, 2>> channels_;  ///< by edge: forward, transposed
  std::map<int, std::unique_ptr<Place>> places_;
  Arena work_;
  std::span<StepData> steps_;
  Mode mode_ = Mode::train;
  const Action* current_ = nullptr;
  std::int64_t step_ = 0;
  std::vector<TraceRow> trace_;
  double sink_seconds_ = 0.0, started_ = 0.0;
  std::function<void(int, std::int64_t, const Tensor&)> logits_sink_;
  std::function<void(std::int64_t, const Tensor&)> logits_chunk_;
};

}  // namespace mmt::run
