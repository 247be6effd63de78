#include "contract_units.h"

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/gather.h"
#include "kernels/linear.h"
#include "kernels/rotary.h"

namespace mmt::testing {
namespace {

using namespace run;

UnitPlanner planner_for(const std::string& module, const std::string& name, const UnitOptions& o) {
  UnitPlanner::Setting setting;
  setting.module = module;
  setting.dtype = o.dtype;
  setting.degrees[Axis::tp] = o.tp;
  setting.coord[Axis::tp] = o.tp_rank;
  setting.trainable = o.trainable;
  return UnitPlanner(setting, module + "." + name);
}

ParamSpec matrix(const std::string& name, std::int64_t rows, std::int64_t cols) {
  ParamSpec spec;
  spec.name = name;
  spec.shape = {rows, cols};
  spec.init = {Init::Kind::normal, 0.3};
  return spec;
}

plan::Linear per_row(std::int64_t bytes) { return {.constant = 1024, .per_row = bytes}; }
std::int64_t width_bytes(DType dtype, std::int64_t cols) { return cols * size_of(dtype); }

PortPlan x_port(const UnitOptions& o, Life keep) {
  PortPlan x;
  x.cols = kWidth;
  x.dtype = o.dtype;
  x.needs_grad = o.input_needs_grad;
  x.keep = keep;
  return x;
}

class Stem final : public Unit {
 public:
  Stem(const std::string& module, const UnitOptions& o) {
    UnitPlanner p = planner_for(module, "stem", o);
    w_ = p.param(matrix("stem.weight", kWidth, kSourceCols));
    PortPlan y;
    y.cols = kWidth;
    y.dtype = o.dtype;
    y.keep_grad = p.trains(w_) ? Life::stash : Life::scratch;
    p.output(y);
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor>, const Tensor& out, Saved&) const override {
    ops::linear_forward(ctx.stream, out, ctx.rows->source, ctx.weight(w_));
  }
  void backward_input(Ctx&, const Tensor&, std::span<const Tensor>, Saved&) const override {}
  void backward_weight(Ctx& ctx, Saved& saved) const override {
    const GradTarget g = ctx.grad(w_);
    ops::linear_backward_weight(ctx.stream, g.view, saved.d_out, ctx.rows->source, g.mode);
  }
  void recompute(Ctx&, Saved&) const override {}

 private:
  ParamId w_;
};

class Mlp final : public Unit {
 public:
  Mlp(const std::string& module, const std::string& name, const UnitOptions& o) : tp_(o.tp), part_(kHidden / o.tp) {
    UnitPlanner p = planner_for(module, name, o);
    ParamSpec w1 = matrix(name + ".w1", kHidden, kWidth);
    w1.box = {{o.tp_rank * part_, 0}, {part_, kWidth}};
    ParamSpec w2 = matrix(name + ".w2", kWidth, kHidden);
    w2.box = {{0, o.tp_rank * part_}, {kWidth, part_}};
    w1_ = p.param(w1);
    w2_ = p.param(w2);
    const bool needs = p.trains(w1_) || p.trains(w2_) || o.input_needs_grad;
    p.input(x_port(o, p.trains(w1_) ? Life::held : Life::scratch));
    PortPlan y;
    y.cols = kWidth;
    y.dtype = o.dtype;
    y.keep_grad = p.trains(w2_) ? Life::stash : Life::scratch;
    p.output(y);
    pre_ = p.tensor("pre", part_, needs ? Life::kept : Life::scratch);
    act_ = p.tensor("act", part_, p.trains(w2_) ? Life::held : Life::scratch);
    p.cheap(act_);
    d_pre_ = p.trains(w1_) ? p.tensor("d_pre", part_, Life::stash) : -1;
    p.scratch(Phase::backward_input, per_row(2 * width_bytes(o.dtype, part_)));
    if (tp_ > 1) {
      const plan::Linear bytes{.per_row = width_bytes(o.dtype, kWidth)};
      p.event(Phase::forward, {InnerEvent::Op::all_reduce, Axis::tp, bytes});
      if (o.input_needs_grad) p.event(Phase::backward_input, {InnerEvent::Op::all_reduce, Axis::tp, bytes});
    }
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override {
    hidden(ctx, in[0], saved);
    ops::linear_forward(ctx.stream, out, saved[act_], ctx.weight(w2_));
    if (tp_ > 1) ctx.comm(Axis::tp).all_reduce(out, comm::ReduceOp::sum, ctx.stream);
    ops::add_in_place(ctx.stream, out, in[0]);
  }
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override {
    const ArenaScope scope(*ctx.scratch);
    const Tensor d_act = ctx.scratch->take(d_out.dtype, {d_out.rows(), part_});
    const Tensor d_pre = d_pre_ >= 0 ? saved[d_pre_] : ctx.scratch->take(d_out.dtype, {d_out.rows(), part_});
    ops::linear_backward_input(ctx.stream, d_act, d_out, ctx.weight(w2_));
    ops::activation_backward(ctx.stream, d_pre, d_act, saved[pre_], Activation::gelu_erf);
    if (!d_in[0].defined()) return;
    ops::linear_backward_input(ctx.stream, d_in[0], d_pre, ctx.weight(w1_));
    if (tp_ > 1) ctx.comm(Axis::tp).all_reduce(d_in[0], comm::ReduceOp::sum, ctx.stream);
    ops::add_in_place(ctx.stream, d_in[0], d_out);
  }
  void backward_weight(Ctx& ctx, Saved& saved) const override {
    if (plan_.params[static_cast<std::size_t>(w2_)].trainable) {
      const GradTarget g = ctx.grad(w2_);
      ops::linear_backward_weight(ctx.stream, g.view, saved.d_out, saved[act_], g.mode);
    }
    if (plan_.params[static_cast<std::size_t>(w1_)].trainable) {
      const GradTarget g = ctx.grad(w1_);
      ops::linear_backward_weight(ctx.stream, g.view, saved[d_pre_], saved.in[0], g.mode);
    }
  }
  void recompute(Ctx& ctx, Saved& saved) const override { hidden(ctx, saved.in[0], saved); }
  void recompute_cheap(Ctx& ctx, Saved& saved) const override {
    ops::activation_forward(ctx.stream, saved[act_], saved[pre_], Activation::gelu_erf);
  }

 private:
  void hidden(Ctx& ctx, const Tensor& x, Saved& saved) const {
    ops::linear_forward(ctx.stream, saved[pre_], x, ctx.weight(w1_));
    ops::activation_forward(ctx.stream, saved[act_], saved[pre_], Activation::gelu_erf);
  }
  int tp_;
  std::int64_t part_;
  ParamId w1_, w2_;
  SlotId pre_, act_, d_pre_;
};

/// All rows on one side, this rank's share of them on the other.
class Shares final : public Unit {
 public:
  Shares(const std::string& module, const UnitOptions& o, bool joins) : joins_(joins) {
    UnitPlanner p = planner_for(module, joins ? "join" : "cut", o);
    const RowCount share(RowCount::rows, o.tp);
    PortPlan x = x_port(o, Life::scratch), y = x;
    (joins ? x : y).count = share;
    p.input(x);
    p.output(y);
    const InnerEvent gather{InnerEvent::Op::all_gather, Axis::tp, {.per_row = width_bytes(o.dtype, kWidth)}};
    if (joins || o.input_needs_grad) p.event(joins ? Phase::forward : Phase::backward_input, gather);
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved&) const override {
    joins_ ? ctx.comm(Axis::tp).all_gather(in[0], out, ctx.stream) : ops::copy(ctx.stream, out, own(ctx, in[0]));
  }
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved&) const override {
    if (!d_in[0].defined()) return;
    joins_ ? ops::copy(ctx.stream, d_in[0], own(ctx, d_out))
           : ctx.comm(Axis::tp).all_gather(d_out, d_in[0], ctx.stream);
  }
  void backward_weight(Ctx&, Saved&) const override {}
  void recompute(Ctx&, Saved&) const override {}

 private:
  static Tensor own(Ctx& ctx, const Tensor& whole) {
    const std::int64_t rows = whole.rows() / ctx.comm(Axis::tp).size();
    return whole.row_range(ctx.comm(Axis::tp).rank() * rows, rows);
  }
  bool joins_;
};

class Rotation final : public Unit {
 public:
  Rotation(const std::string& module, const std::string& name, const UnitOptions& o) {
    UnitPlanner p = planner_for(module, name, o);
    w_ = p.param(matrix(name + ".mix", kWidth, kWidth));
    p.input(x_port(o, Life::scratch));
    PortPlan y;
    y.cols = kWidth;
    y.dtype = o.dtype;
    y.keep_grad = p.trains(w_) ? Life::stash : Life::scratch;
    p.output(y);
    turned_ = p.tensor("turned", kWidth, p.trains(w_) ? Life::held : Life::scratch);
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override {
    turn(ctx, in[0], saved);
    ops::linear_forward(ctx.stream, out, saved[turned_], ctx.weight(w_));
  }
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved&) const override {
    if (!d_in[0].defined()) return;
    ops::linear_backward_input(ctx.stream, d_in[0], d_out, ctx.weight(w_));
    ops::rotary_apply(ctx.stream, ops::split_heads(d_in[0], 1), ctx.rows->rotary->cos, ctx.rows->rotary->sin,
                      Direction::backward);
  }
  void backward_weight(Ctx& ctx, Saved& saved) const override {
    const GradTarget g = ctx.grad(w_);
    ops::linear_backward_weight(ctx.stream, g.view, saved.d_out, saved[turned_], g.mode);
  }
  void recompute(Ctx& ctx, Saved& saved) const override { turn(ctx, saved.in[0], saved); }

 private:
  void turn(Ctx& ctx, const Tensor& x, Saved& saved) const {
    ops::copy(ctx.stream, saved[turned_], x);
    ops::rotary_apply(ctx.stream, ops::split_heads(saved[turned_], 1), ctx.rows->rotary->cos, ctx.rows->rotary->sin,
                      Direction::forward);
  }
  ParamId w_;
  SlotId turned_;
};

class Projector final : public Unit {
 public:
  Projector(const std::string& module, const UnitOptions& o) {
    UnitPlanner p = planner_for(module, "projector", o);
    ParamSpec w = matrix("linear.weight", kWidth, kWidth);
    w.module = module + ".projector";
    w_ = p.param(w);
    p.input(x_port(o, Life::scratch));
    PortPlan y;
    y.cols = kWidth;
    y.dtype = o.dtype;
    y.count = RowCount::out;
    y.keep_grad = p.trains(w_) ? Life::stash : Life::scratch;
    p.output(y);
    picked_ = p.tensor("picked", kWidth, p.trains(w_) ? Life::held : Life::scratch, RowCount::out);
    p.scratch(Phase::backward_input, {.constant = 1024, .per_out = width_bytes(o.dtype, kWidth)});
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override {
    ops::gather_rows(ctx.stream, saved[picked_], in[0], ctx.rows->out_rows);
    ops::linear_forward(ctx.stream, out, saved[picked_], ctx.weight(w_));
  }
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved&) const override {
    if (!d_in[0].defined()) return;
    const ArenaScope scope(*ctx.scratch);
    const Tensor d_picked = ctx.scratch->take(d_out.dtype, {d_out.rows(), kWidth});
    ops::linear_backward_input(ctx.stream, d_picked, d_out, ctx.weight(w_));
    ops::fill(ctx.stream, d_in[0], 0.0);
    ops::scatter_add_rows(ctx.stream, d_in[0], d_picked, ctx.rows->out_rows);
  }
  void backward_weight(Ctx& ctx, Saved& saved) const override {
    const GradTarget g = ctx.grad(w_);
    ops::linear_backward_weight(ctx.stream, g.view, saved.d_out, saved[picked_], g.mode);
  }
  void recompute(Ctx& ctx, Saved& saved) const override {
    ops::gather_rows(ctx.stream, saved[picked_], saved.in[0], ctx.rows->out_rows);
  }

 private:
  ParamId w_;
  SlotId picked_;
};

class Embedding final : public Unit {
 public:
  Embedding(const std::string& module, const std::string& port, bool port_needs_grad, const UnitOptions& o) {
    UnitPlanner p = planner_for(module, "embed", o);
    table_ = p.param(matrix("embed_tokens.weight", kVocabulary, kWidth));
    PortPlan media;
    media.name = port;
    media.cols = kWidth;
    media.dtype = o.dtype;
    media.count = RowCount::port;
    media.needs_grad = port_needs_grad;
    p.input(media);
    PortPlan y;
    y.cols = kWidth;
    y.dtype = o.dtype;
    y.keep_grad = p.trains(table_) ? Life::stash : Life::scratch;
    p.output(y);
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved&) const override {
    ops::embedding_forward(ctx.stream, out, ctx.weight(table_), ctx.rows->ids);
    ops::scatter_rows(ctx.stream, out, in[0], ctx.rows->port_dst[0]);
  }
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved&) const override {
    if (d_in[0].defined()) ops::gather_rows(ctx.stream, d_in[0], d_out, ctx.rows->port_dst[0]);
  }
  void backward_weight(Ctx& ctx, Saved& saved) const override {
    const GradTarget g = ctx.grad(table_);
    ops::embedding_backward(ctx.stream, g.view, saved.d_out, ctx.rows->ids, g.mode);
  }
  void recompute(Ctx&, Saved&) const override {}

 private:
  ParamId table_;
};

class Head final : public Unit {
 public:
  Head(const std::string& module, const UnitOptions& o) {
    UnitPlanner p = planner_for(module, "head", o);
    table_ = p.param(matrix("embed_tokens.weight", kVocabulary, kWidth));
    p.input(x_port(o, Life::scratch));
    picked_ = p.tensor("picked", kWidth, Life::scratch, RowCount::supervised);
    d_picked_ = p.tensor("d_picked", kWidth, Life::kept, RowCount::supervised);
    const std::int64_t bytes = 4 * kVocabulary * size_of(o.dtype) + 64;
    p.scratch(Phase::forward, {.constant = 1 << 14, .per_supervised = bytes});
    plan_ = p.take();
  }
  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor&, Saved& saved) const override {
    const Rows& rows = *ctx.rows;
    ops::gather_rows(ctx.stream, saved[picked_], in[0], rows.supervised_rows);
    const ArenaScope scope(*ctx.scratch);
    const Tensor seeds = ctx.scratch->take(rows.weights.dtype, {rows.weights.rows()});
    ops::scale(ctx.stream, seeds, rows.weights, ctx.loss_scale);
    LinearCrossEntropy args{.x = saved[picked_], .w = ctx.weight(table_), .labels = rows.labels, .weight = seeds};
    const bool trains = plan_.params[0].trainable;
    const GradTarget g = trains ? ctx.grad(table_) : GradTarget{};
    ops::linear_cross_entropy(ctx.stream, *ctx.scratch, rows.loss, {}, saved[d_picked_], g.view, args, g.mode);
  }
  void backward_input(Ctx& ctx, const Tensor&, std::span<const Tensor> d_in, Saved& saved) const override {
    if (!d_in[0].defined()) return;
    ops::fill(ctx.stream, d_in[0], 0.0);
    ops::scatter_rows(ctx.stream, d_in[0], saved[d_picked_], ctx.rows->supervised_rows);
  }
  void backward_weight(Ctx&, Saved&) const override {}
  void recompute(Ctx&, Saved&) const override {}

 private:
  ParamId table_;
  SlotId picked_, d_picked_;
};

}  // namespace

std::unique_ptr<Unit> make_stem(const std::string& module, const UnitOptions& o) {
  return std::make_unique<Stem>(module, o);
}
std::unique_ptr<Unit> make_mlp(const std::string& module, const std::string& name, const UnitOptions& o) {
  return std::make_unique<Mlp>(module, name, o);
}
std::unique_ptr<Unit> make_cut(const std::string& module, const UnitOptions& o) {
  return std::make_unique<Shares>(module, o, false);
}
std::unique_ptr<Unit> make_join(const std::string& module, const UnitOptions& o) {
  return std::make_unique<Shares>(module, o, true);
}
std::unique_ptr<Unit> make_rotation(const std::string& module, const std::string& name, const UnitOptions& o) {
  return std::make_unique<Rotation>(module, name, o);
}
std::unique_ptr<Unit> make_projector(const std::string& module, const UnitOptions& o) {
  return std::make_unique<Projector>(module, o);
}
std::unique_ptr<Unit> make_embedding(const std::string& module, const std::string& port, bool port_needs_grad,
                                     const UnitOptions& o) {
  return std::make_unique<Embedding>(module, port, port_needs_grad, o);
}
std::unique_ptr<Unit> make_head(const std::string& module, const UnitOptions& o) {
  return std::make_unique<Head>(module, o);
}

RotarySpec test_rotary() {
  RotarySpec spec;
  spec.inv_freq.resize(kWidth / 2);
  ops::rotary_inverse_frequencies(spec.inv_freq, 100.0);
  spec.axis = {0, 1, 2, 2};
  return spec;
}

}  // namespace mmt::testing
