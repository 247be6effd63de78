// What a rank computes: the units of a stage, forward and backward, and the memory that each call works in.
#include "parallel/run/executor_impl.h"

namespace mmt::run {

void Executor::Impl::forward(const Action& a) {
  Place& p = place(a.stage);
  Slot& s = slot(a, a.stage, a.block);
  MMT_CHECK(!s.forwarded, "{} runs twice", to_string(a));
  s.forwarded = true;
  const Rows& rows = rows_of_block(a, a.stage, a.block);
  const bool saves = backward_of(a, a.stage);
  if (saves) {
    s.kept = p.kept.take();
    s.held = p.held.take();
  }
  const ArenaScope scope(work_);
  std::array<Tensor, 2> turn = chain_buffers(p, rows);
  const std::size_t n = p.layout.num_units();
  Tensor x;
  for (std::size_t u = 0; u < n; ++u) {
    const UnitPlan& unit = p.layout.plan(u);
    Saved& saved = s.saved[u];
    std::vector<Tensor>& in = saved.in;
    in.assign(unit.inputs.size(), Tensor());
    for (std::size_t i = 0; i < in.size(); ++i) {
      const int port = p.layout.stage_port[u][i];
      in[i] = port < 0 ? x : s.in[static_cast<std::size_t>(port)];
    }
    Tensor out;
    if (unit.has_output()) out = forward_output(p, s, rows, turn, u, saves);
    const ArenaScope unit_scope(work_);
    const bool keep = saves && unit.needs_backward();
    saved.tensors.resize(unit.tensors.size());
    for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
      const TensorSpec& spec = unit.tensors[t];
      const bool stored = keep && p.layout.stored(u, spec);
      if (spec.life == Life::kept) saved.tensors[t] = take(stored ? *s.kept : work_, spec, rows);
      if (spec.life == Life::held) saved.tensors[t] = take(stored ? *s.held : work_, spec, rows);
    }
    take_tensors(unit, Life::scratch, work_, rows, saved);
    call(a, p, u, Phase::forward, [&](Ctx& ctx) { p.layout.stage->units[u]->forward(ctx, in, out, saved); });
    for (std::size_t t = 0; t < saved.tensors.size(); ++t) {
      if (unit.tensors[t].life == Life::scratch || !p.layout.stored(u, unit.tensors[t])) saved.tensors[t] = Tensor();
    }
    if (!keep) saved.tensors.clear();
    for (std::size_t i = 0; i < in.size(); ++i) {
      const bool restarts = p.layout.recompute[u] == Recompute::full;
      if (!saves || (unit.inputs[i].keep == Life::scratch && !restarts)) in[i] = Tensor();
    }
    if (!unit.has_output() && mode_ == Mode::train && unit.trains()) p.setup.store->block_done(static_cast<int>(u));
    x = out;
  }
  if (!saves) finish(a, s);
}

std::array<Tensor, 2> Executor::Impl::chain_buffers(const Place& p, const Rows& rows) {
  std::int64_t bytes = 0;
  for (std::size_t u = 0; u + 1 < p.layout.num_units(); ++u) {
    const PortPlan& out = p.layout.plan(u).output;
    bytes = std::max(bytes, rows_of(out.count, rows.size, 0) * out.cols * size_of(out.dtype));
  }
  return {work_.take(DType::u8, {bytes}), work_.take(DType::u8, {bytes})};
}

Tensor Executor::Impl::in_buffer(const Tensor& buffer, const PortPlan& port, const Rows& rows) {
  return Tensor(buffer.data, port.dtype, {rows_of(port.count, rows.size, 0), port.cols}, buffer.device);
}

Tensor Executor::Impl::forward_output(Place& p, Slot& s, const Rows& rows, const std::array<Tensor, 2>& turn,
                                      std::size_t u, bool saves) {
  const PortPlan& port = p.layout.plan(u).output;
  if (u + 1 == p.layout.num_units()) return s.out = take(*s.ports, port, rows, 0);
  const Life life = saves ? p.layout.chain_life[u] : Life::scratch;
  if (life == Life::kept) return take(*s.kept, port, rows, 0);
  if (life == Life::held) return take(*s.held, port, rows, 0);
  return in_buffer(turn[u % 2], port, rows);
}

void Executor::Impl::restore(const Action& a, Place& p, Slot& s, std::size_t u, Arena& kept, Arena& held) {
  const UnitPlan& unit = p.layout.plan(u);
  const Rows& rows = rows_of_block(a, a.stage, a.block);
  Saved& saved = s.saved[u];
  saved.tensors.resize(unit.tensors.size());
  for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
    const TensorSpec& spec = unit.tensors[t];
    if (p.layout.stored(u, spec)) continue;
    if (spec.life == Life::kept) saved.tensors[t] = take(kept, spec, rows);
    if (spec.life == Life::held) saved.tensors[t] = take(held, spec, rows);
  }
  const ArenaScope scope(work_);
  take_tensors(unit, Life::scratch, work_, rows, saved);
  call(a, p, u, Phase::recompute, [&](Ctx& ctx) {
    const Unit& layer = *p.layout.stage->units[u];
    if (p.layout.recompute[u] == Recompute::full) return layer.recompute(ctx, saved);
    layer.recompute_cheap(ctx, saved);
  });
  drop_tensors(unit, Life::scratch, saved);
}

void Executor::Impl::move_held(Place& p, Slot& s, std::size_t u, Arena& stash, const Rows& rows) {
  const UnitPlan& unit = p.layout.plan(u);
  for (std::size_t t = 0; t < unit.tensors.size(); ++t) {
    const TensorSpec& spec = unit.tensors[t];
    if (spec.life != Life::held || p.layout.stored(u, spec)) continue;
    const Tensor target = take(stash, spec, rows);
    ops::copy(stream_, target, s.saved[u].tensors[t]);
    s.saved[u].tensors[t] = target;
  }
}

void Executor::Impl::recompute(const Action& a) {
  Place& p = place(a.stage);
  Slot& s = slot(a, a.stage, a.block);
  if (s.restored != nullptr ||
      std::ranges::count(p.layout.recompute, Recompute::none) == std::ssize(p.layout.recompute))
    return;
  s.restored = p.restored.take();
  for (std::size_t u = 0; u < p.layout.num_units(); ++u) {
    if (p.layout.recompute[u] != Recompute::none) restore(a, p, s, u, *s.restored, *s.restored);
  }
}

void Executor::Impl::backward(const Action& a, bool with_weights) {
  Place& p = place(a.stage);
  Slot& s = slot(a, a.stage, a.block);
  MMT_CHECK(s.forwarded && s.returns == 0, "{}: {} gradients of its output have not come back", to_string(a),
            s.returns);
  const Rows& rows = rows_of_block(a, a.stage, a.block);
  const bool weights_later = !with_weights && graph_of(a).stages[static_cast<std::size_t>(a.stage)].has_weight_grads;
  if (weights_later) s.stash = p.stash.take();
  const ArenaScope scope(work_);
  const std::array<Tensor, 2> turn = chain_buffers(p, rows);
  const std::size_t n = p.layout.num_units();
  Tensor d_out = output_gradient(p, s, rows);
  for (std::size_t u = n; u-- > 0;) {
    const UnitPlan& unit = p.layout.plan(u);
    if (!unit.needs_backward()) break;  // nothing below it needs one either
    Saved& saved = s.saved[u];
    const ArenaScope unit_scope(work_);
    Arena& stash = weights_later ? *s.stash : work_;
    if (p.layout.recompute[u] != Recompute::none && s.restored == nullptr) restore(a, p, s, u, work_, stash);
    take_tensors(unit, Life::stash, stash, rows, saved);
    saved.d_out = d_out;
    std::vector<Tensor> d_in(unit.inputs.size());
    Tensor d_x;
    for (std::size_t i = 0; i < d_in.size(); ++i) {
      const PortPlan& port = unit.inputs[i];
      if (!port.needs_grad) continue;
      const int stage_port = p.layout.stage_port[u][i];
      if (stage_port >= 0) {
        d_in[i] = s.d_in[static_cast<std::size_t>(stage_port)] =
            s.ports->take(port.dtype, {s.in[static_cast<std::size_t>(stage_port)].rows(), port.cols});
      } else {
        const bool stays = weights_later && p.layout.plan(u - 1).output.keep_grad == Life::stash;
        d_x = d_in[i] = stays ? take(*s.stash, port, rows, 0) : in_buffer(turn[u % 2], port, rows);
      }
      if (port.add_grad) ops::fill(stream_, d_in[i], 0.0);
    }
    {
      const ArenaScope call_scope(work_);
      take_tensors(unit, Life::scratch, work_, rows, saved);
      call(a, p, u, Phase::backward_input,
           [&](Ctx& ctx) { p.layout.stage->units[u]->backward_input(ctx, d_out, d_in, saved); });
      drop_tensors(unit, Life::scratch, saved);
    }
    drop_tensors(unit, Life::kept, saved);
    if (weights_later && s.restored != nullptr) move_held(p, s, u, stash, rows);
    if (!weights_later) weights(a, p, s, u);
    d_out = d_x;
  }
  p.kept.give_back(s.kept);
  p.restored.give_back(s.restored);
  if (weights_later) {
    for (std::size_t u = 0; u < n; ++u) {
      for (std::size_t i = 0; i < s.saved[u].in.size(); ++i) {
        if (p.layout.plan(u).inputs[i].keep != Life::held) s.saved[u].in[i] = Tensor();
      }
      if (p.layout.plan(u).has_output() && p.layout.plan(u).output.keep_grad != Life::stash)
        s.saved[u].d_out = Tensor();
    }
    return;
  }
  p.held.give_back(s.held);
  finish(a, s);
}

Tensor Executor::Impl::output_gradient(Place& p, Slot& s, const Rows& rows) {
  const UnitPlan& last = p.layout.plan(p.layout.num_units() - 1);
  if (!last.has_output() || s.d_out.defined()) return s.d_out;
  s.d_out = take(*s.ports, last.output, rows, 0);  // nobody read the block
  ops::fill(stream_, s.d_out, 0.0);
  return s.d_out;
}

void Executor::Impl::weights(const Action& a, Place& p, Slot& s, std::size_t u) {
  const UnitPlan& unit = p.layout.plan(u);
  if (!unit.trains() || !unit.has_output()) return;
  const ArenaScope scope(work_);
  take_tensors(unit, Life::scratch, work_, rows_of_block(a, a.stage, a.block), s.saved[u]);
  call(a, p, u, Phase::backward_weight, [&](Ctx& ctx) { p.layout.stage->units[u]->backward_weight(ctx, s.saved[u]); });
  drop_tensors(unit, Life::scratch, s.saved[u]);
  p.setup.store->block_done(static_cast<int>(u));
}

void Executor::Impl::backward_weight(const Action& a) {
  Place& p = place(a.stage);
  Slot& s = slot(a, a.stage, a.block);
  for (std::size_t u = p.layout.num_units(); u-- > 0;) {
    if (p.layout.plan(u).needs_backward()) weights(a, p, s, u);
  }
  p.held.give_back(s.held);
  p.stash.give_back(s.stash);
  finish(a, s);
}

void Executor::Impl::finish(const Action& a, Slot& s) {
  s.computed = true;
  s.saved.clear();
  release_if_done(a, a.stage, a.block);
}

template <class F> void Executor::Impl::call(const Action& a, Place& p, std::size_t u, Phase phase, F&& f) {
  Ctx ctx = context(a, p, u);
  const bool weights = phase != Phase::backward_weight;
  if (weights) p.setup.store->gather(static_cast<int>(u));
  const std::size_t before = p.trace.events.size();
  const auto start = std::chrono::steady_clock::now();
  f(ctx);
  if (!p.layout.plan(u).has_output()) {
    sink_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  if (options_.check_events) {
    check_events(a, p, u, phase, before);
    p.trace.events.clear();
  }
  if (weights) p.setup.store->release(static_cast<int>(u));
}

void Executor::Impl::check_events(const Action& a, Place& p, std::size_t u, Phase phase, std::size_t before) {
  constexpr const char* kOps[] = {"all_reduce", "reduce_scatter", "all_gather"};
  const Purpose purpose = mode_ == Mode::train ? Purpose::train : logits_sink_ ? Purpose::logits : Purpose::evaluate;
  // What is cheap is made again without collectives.
  const bool cheap = phase == Phase::recompute && p.layout.recompute[u] == Recompute::selective;
  const auto planned = cheap ? std::vector<UnitPlan::Collective>()
                             : p.layout.plan(u).collectives(phase, purpose, rows_of_block(a, a.stage, a.block).size);
  const std::span<const comm::CommEvent> done = std::span(p.trace.events).subspan(before);
  std::size_t at = 0;
  for (const UnitPlan::Collective& e : planned) {
    if (p.setup.comms[static_cast<std::size_t>(e.axis)] == nullptr) continue;
    MMT_CHECK(at < done.size(), "{} {}: planned {} was not executed", to_string(a), p.layout.plan(u).name,
              kOps[static_cast<int>(e.op)]);
    MMT_CHECK(done[at].op == kOps[static_cast<int>(e.op)] && done[at].bytes == e.bytes,
              "{} {}: planned {} of {} bytes, executed {} of {}", to_string(a), p.layout.plan(u).name,
              kOps[static_cast<int>(e.op)], e.bytes, done[at].op, done[at].bytes);
    ++at;
  }
  MMT_CHECK(at == done.size(), "{} {}: executed {} without a plan", to_string(a), p.layout.plan(u).name, done[at].op);
}

}  // namespace mmt::run
