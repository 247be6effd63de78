#include "models/block.h"

#include "kernels/elementwise.h"
#include "models/whole_rows.h"

#include <algorithm>

namespace mmt::models {

TransformerBlock::TransformerBlock(const UnitPlanner::Setting& setting, BlockOptions o, bool input_needs_grad)
    : input_needs_grad_(input_needs_grad) {
  UnitPlanner planner(setting, o.unit);
  const RowCount count = planner.between_layers();
  shares_ = planner.sequence_parallel();
  for (std::string* name : {&o.norm1, &o.norm2, &o.attention.q, &o.attention.k, &o.attention.v, &o.attention.o,
                            &o.attention.q_norm, &o.attention.k_norm, &o.mlp.gate, &o.mlp.up, &o.mlp.down})
    if (!name->empty()) *name = o.prefix + *name;
  const std::int64_t hidden = o.attention.hidden;
  const int x = planner.input({.cols = hidden, .dtype = setting.dtype, .count = count, .needs_grad = input_needs_grad});

  const auto norm = [&](const std::string& name, bool needs_grad) {
    return Norm(planner,
                {.name = name,
                 .kind = o.norm,
                 .features = hidden,
                 .epsilon = o.epsilon,
                 .count = count,
                 .partial_over_tp = shares_},
                needs_grad);
  };
  // Layers that mix rows or are cut over tp read all rows: of their input in F and BW, of their output's gradient in
  // BI.
  const auto gather = [&](std::initializer_list<Phase> phases) {
    for (const Phase phase : phases)
      if (shares_) planner.event(phase, rows_gather(planner, hidden));
  };
  auto& back = planner.events(Phase::backward_input);
  norm1_ = norm(o.norm1, input_needs_grad);
  gather({Phase::forward, Phase::recompute});
  attention_ = SelfAttention(planner, o.attention, norm1_.output_needs_grad());
  middle_needs_grad_ = input_needs_grad || attention_.output_needs_grad();
  if (shares_ && middle_needs_grad_) back.insert(back.begin(), rows_gather(planner, hidden));
  norm2_ = norm(o.norm2, middle_needs_grad_);
  gather({Phase::forward, Phase::recompute});
  const auto attention_events = std::ssize(back);
  mlp_ = Mlp(planner, o.mlp, norm2_.output_needs_grad());
  const bool backward = middle_needs_grad_ || mlp_.output_needs_grad();
  if (shares_ && backward) back.insert(back.begin() + attention_events, rows_gather(planner, hidden));
  std::rotate(back.begin(), back.begin() + attention_events, back.end());
  if (attention_.input_life() == Life::held) gather({Phase::backward_weight});
  if (mlp_.input_life() == Life::held) gather({Phase::backward_weight});

  planner.input_port(x).keep = norm1_.input_life();
  normed1_ = planner.tensor("normed 1", hidden, attention_.input_life(), count);
  middle_ = planner.tensor("middle", hidden, norm2_.input_life(), count);
  normed2_ = planner.tensor("normed 2", hidden, mlp_.input_life(), count);
  cheap1_ = norm1_.input_life() != Life::scratch && attention_.input_life() != Life::scratch;
  cheap2_ = norm2_.input_life() != Life::scratch && mlp_.input_life() != Life::scratch;
  if (cheap1_) planner.cheap(normed1_);
  if (cheap2_) planner.cheap(normed2_);
  planner.output({.cols = hidden,
                  .dtype = setting.dtype,
                  .count = count,
                  .keep_grad = shares_ ? Life::scratch : mlp_.grad_life()});

  const Linear buffer = run::arena_bytes(setting.dtype, count, hidden);
  const Linear whole = shares_ ? run::arena_bytes(setting.dtype, RowCount::rows, hidden) : Linear{};
  Linear held;
  if (attention_.grad_life() == Life::stash)
    d_middle_ = planner.tensor(shares_ ? "d middle of all rows" : "d middle", hidden, Life::stash);
  if (shares_ && mlp_.grad_life() == Life::stash) d_out_ = planner.tensor("d out of all rows", hidden, Life::stash);
  if (middle_needs_grad_ && !input_needs_grad && (shares_ || d_middle_ == kNone)) held += buffer;
  // One gradient of a normed input at a time: the MLP's, then attention's.
  planner.scratch(Phase::backward_input,
                  held + buffer + (d_out_ == kNone ? whole : Linear{}) + mlp_.backward_scratch());
  planner.scratch(Phase::backward_input,
                  held + buffer + (d_middle_ == kNone ? whole : Linear{}) + attention_.backward_scratch());
  for (const Phase phase : {Phase::forward, Phase::recompute}) {
    planner.scratch(phase, whole + attention_.forward_scratch());
    planner.scratch(phase, whole + mlp_.forward_scratch());
  }
  planner.scratch(Phase::backward_weight, whole + attention_.weight_scratch());
  planner.scratch(Phase::backward_weight, whole + mlp_.weight_scratch());
  plan_ = planner.take();
}

/// All rows of a share, gathered into `whole` or the scratch arena; the tensor itself without sequence parallelism.
Tensor TransformerBlock::all_rows(Ctx& ctx, const Tensor& share, Tensor whole) const {
  if (!shares_) return share;
  if (!whole.defined()) whole = ctx.scratch->take(share.dtype, {ctx.rows->size.rows, share.cols()});
  gather_rows_over_tp(ctx, share, whole);
  return whole;
}

void TransformerBlock::run(Ctx& ctx, const Tensor& x, const Tensor& out, Saved& saved) const {
  const Tensor middle = saved[middle_];
  norm1_.forward(ctx, saved, saved[normed1_], x);
  {
    const ArenaScope scope(*ctx.scratch);
    attention_.forward(ctx, saved, middle, all_rows(ctx, saved[normed1_]));
  }
  ops::add_in_place(ctx.stream, middle, x);
  norm2_.forward(ctx, saved, saved[normed2_], middle);
  {
    const ArenaScope scope(*ctx.scratch);
    mlp_.forward(ctx, saved, out, all_rows(ctx, saved[normed2_]));
  }
  if (out.defined()) ops::add_in_place(ctx.stream, out, middle);
}

void TransformerBlock::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const {
  run(ctx, in[0], out, saved);
}

void TransformerBlock::recompute(Ctx& ctx, Saved& saved) const { run(ctx, saved.in[0], {}, saved); }

void TransformerBlock::recompute_cheap(Ctx& ctx, Saved& saved) const {
  if (cheap1_) norm1_.forward(ctx, saved, saved[normed1_], saved.in[0]);
  if (cheap2_) norm2_.forward(ctx, saved, saved[normed2_], saved[middle_]);
  mlp_.recompute_cheap(ctx, saved);
}

void TransformerBlock::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const {
  if (!plan_.needs_backward()) return;
  const ArenaScope scope(*ctx.scratch);
  const std::int64_t hidden = plan_.output.cols;
  const auto buffer = [&] { return ctx.scratch->take(d_out.dtype, {d_out.rows(), hidden}); };
  const Tensor dx = input_needs_grad_ ? d_in[0] : Tensor{};

  // d h = d y + norm2'(mlp'(d y)). It lives where its longest reader wants it.
  Tensor d_middle;
  if (middle_needs_grad_) {
    d_middle = d_middle_ != kNone && !shares_ ? saved[d_middle_] : input_needs_grad_ ? dx : buffer();
    ops::copy(ctx.stream, d_middle, d_out);
  }
  {
    const ArenaScope inner(*ctx.scratch);
    const Tensor d_normed = norm2_.output_needs_grad() ? buffer() : Tensor{};
    mlp_.backward_input(ctx, saved, d_normed, all_rows(ctx, d_out, d_out_ == kNone ? Tensor{} : saved[d_out_]));
    if (d_normed.defined()) norm2_.backward_input(ctx, saved, d_middle, d_normed, saved[middle_], Accumulate::add);
  }
  if (!middle_needs_grad_) return;

  // d x = d h + norm1'(attention'(d h)).
  const Tensor d_normed = norm1_.output_needs_grad() ? buffer() : Tensor{};
  attention_.backward_input(ctx, saved, d_normed,
                            all_rows(ctx, d_middle, d_middle_ == kNone ? Tensor{} : saved[d_middle_]));
  if (!d_normed.defined()) return;
  if (dx.defined() && dx.data != d_middle.data) ops::copy(ctx.stream, dx, d_middle);
  norm1_.backward_input(ctx, saved, dx, d_normed, saved.in[0], Accumulate::add);
}

void TransformerBlock::backward_weight(Ctx& ctx, Saved& saved) const {
  norm1_.backward_weight(ctx, saved);
  {
    const ArenaScope scope(*ctx.scratch);
    const Tensor x = attention_.input_life() == Life::held ? all_rows(ctx, saved[normed1_]) : saved[normed1_];
    attention_.backward_weight(ctx, saved, d_middle_ == kNone ? Tensor{} : saved[d_middle_], x);
  }
  norm2_.backward_weight(ctx, saved);
  const ArenaScope scope(*ctx.scratch);
  const Tensor x = mlp_.input_life() == Life::held ? all_rows(ctx, saved[normed2_]) : saved[normed2_];
  mlp_.backward_weight(ctx, saved, !shares_ ? saved.d_out : d_out_ == kNone ? Tensor{} : saved[d_out_], x);
}

}  // namespace mmt::models
