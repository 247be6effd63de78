#include "models/embedding.h"

#include "kernels/embedding.h"
#include "kernels/gather.h"

namespace mmt::models {

EmbeddingUnit::EmbeddingUnit(const UnitPlanner::Setting& setting, const EmbeddingOptions& o) {
  UnitPlanner planner(setting, o.unit);
  const auto table = [&](const std::string& name, std::int64_t rows) {
    ParamSpec spec{.name = name + ".weight", .shape = {rows, o.hidden}, .init = {.scale = o.init_scale}};
    if (planner.tp() > 1) spec.replica_over = {{Axis::tp, 0}};
    return planner.param(std::move(spec));
  };
  tokens_ = table(o.tokens, o.vocabulary);
  bool trains = planner.trains(tokens_);
  if (!o.positions.empty()) {
    positions_ = table(o.positions, o.max_positions);
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
  ops::embedding_forward(ctx.stream, out, ctx.weight(tokens_), rows.ids);
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
  const auto scatter = [&](ParamId id, const Tensor& index, const Tensor& d) {
    if (id == kNone || !plan_.params[static_cast<std::size_t>(id)].trainable) return;
    const run::GradTarget target = ctx.grad(id);
    ops::embedding_backward(ctx.stream, target.view, d, index, target.mode);
  };
  if (!plan_.trains()) return;
  scatter(tokens_, rows.ids, saved.d_out);
  if (positions_ != kNone) {
    const std::int64_t used = used_rows(rows);
    scatter(positions_, rows.positions.reshape({rows.positions.rows()}).row_range(0, used),
            saved.d_out.row_range(0, used));
  }
}

}  // namespace mmt::models
