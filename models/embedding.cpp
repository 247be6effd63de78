#include "models/embedding.h"

#include "kernels/gather.h"
#include "models/head_shards.h"

namespace mmt::models {

EmbeddingUnit::EmbeddingUnit(const UnitPlanner::Setting& setting, const EmbeddingOptions& o) {
  UnitPlanner planner(setting, o.unit);
  const auto table = [&](const std::string& name, std::int64_t rows) {
    return ParamSpec{.name = name + ".weight", .shape = {rows, o.hidden}, .init = {.scale = o.init_scale}};
  };
  ParamSpec tokens = table(o.tokens, o.vocabulary);
  cut_vocabulary(planner, tokens);
  shard_ = {static_cast<std::int32_t>(tokens.box.offset[0]), static_cast<std::int32_t>(o.vocabulary)};
  cut_ = planner.tp() > 1;
  // One rank has a token's row, the others zeros: their sum is exact in any type.
  if (cut_)
    planner.event(Phase::forward, {.op = run::InnerEvent::Op::all_reduce,
                                   .axis = Axis::tp,
                                   .bytes = {.per_row = o.hidden * size_of(setting.dtype)}});
  tokens_ = planner.param(std::move(tokens));
  bool trains = planner.trains(tokens_);
  if (!o.positions.empty()) {
    ParamSpec positions = table(o.positions, o.max_positions);
    if (planner.tp() > 1) positions.replica_over = {{Axis::tp, 0}};
    positions_ = planner.param(std::move(positions));
    trains = trains || planner.trains(positions_);
  }
  for (const EmbeddingPort& port : o.ports)
    planner.input({.name = port.name,
                   .cols = o.hidden,
                   .dtype = setting.dtype,
                   .count = RowCount::port,
                   .needs_grad = port.needs_grad});
  planner.output({.cols = o.hidden, .dtype = setting.dtype, .keep_grad = trains ? Life::stash : Life::scratch});
  plan_ = planner.take();
}

void EmbeddingUnit::forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved&) const {
  const run::Rows& rows = *ctx.rows;
  ops::embedding_forward(ctx.stream, out, ctx.weight(tokens_), rows.ids, shard_);
  if (cut_) ctx.comm(Axis::tp).all_reduce(out, comm::ReduceOp::sum, ctx.stream);
  for (std::size_t k = 0; k < in.size(); ++k)
    if (in[k].rows() > 0) ops::scatter_rows(ctx.stream, out, in[k], rows.port_dst[k]);
  if (positions_ != kNone) {
    ops::add_table_rows(ctx.stream, out, out, ctx.weight(positions_), rows.positions.reshape({out.rows()}));
    zero_tail(ctx, out);
  }
}

void EmbeddingUnit::backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved&) const {
  for (std::size_t k = 0; k < d_in.size(); ++k)
    if (d_in[k].defined() && d_in[k].rows() > 0) ops::gather_rows(ctx.stream, d_in[k], d_out, ctx.rows->port_dst[k]);
}

void EmbeddingUnit::backward_weight(Ctx& ctx, Saved& saved) const {
  const run::Rows& rows = *ctx.rows;
  const auto scatter = [&](ParamId id, const Tensor& index, const Tensor& d, VocabularyShard shard) {
    if (id == kNone || !plan_.params[static_cast<std::size_t>(id)].trainable) return;
    const run::GradTarget target = ctx.grad(id);
    ops::embedding_backward(ctx.stream, target.view, d, index, target.mode, shard);
  };
  if (!plan_.trains()) return;
  scatter(tokens_, rows.ids, saved.d_out, shard_);
  if (positions_ != kNone) {
    const std::int64_t used = used_rows(rows);
    scatter(positions_, rows.positions.reshape({rows.positions.rows()}).row_range(0, used),
            saved.d_out.row_range(0, used), {});
  }
}

}  // namespace mmt::models
