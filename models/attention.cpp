#include "models/attention.h"

#include "kernels/gather.h"
#include "kernels/rotary.h"

#include <cmath>

namespace mmt::models {
namespace {

/// FLOPs of one product over one full tile, all heads.
std::int64_t tile_flops(const AttentionShape& shape) {
  const TileShape tile{};
  return std::int64_t{2} * tile.query_rows * tile.key_rows * shape.head_dim * shape.heads;
}

}  // namespace

SelfAttention::SelfAttention(UnitPlanner& planner, const AttentionOptions& options, bool input_needs_grad)
    : mask_(options.mask),
      rotary_(options.rotary),
      input_needs_grad_(input_needs_grad),
      has_norms_(!options.q_norm.empty()) {
  const int tp = planner.tp();
  MMT_CHECK(options.heads % options.kv_heads == 0 && options.heads % tp == 0 &&
                (options.kv_heads % tp == 0 || tp % options.kv_heads == 0),
            "{}: {} heads and {} key heads over {} ranks", options.q, options.heads, options.kv_heads, tp);
  const int copies = options.kv_heads >= tp ? 1 : tp / options.kv_heads;
  shape_ = {.heads = options.heads / tp,
            .kv_heads = copies > 1 ? 1 : options.kv_heads / tp,
            .head_dim = static_cast<std::int32_t>(options.head_dim),
            .scale = 1.0 / std::sqrt(static_cast<double>(options.head_dim))};

  const auto projection = [&](const std::string& name, int heads, bool bias, int num_copies) {
    return LinearLayer(planner,
                       {.name = name,
                        .in = options.hidden,
                        .out = heads * options.head_dim,
                        .bias = bias,
                        .split = Split::columns,
                        .copies = num_copies,
                        .init = {.scale = options.init_scale}},
                       input_needs_grad);
  };
  q_ = projection(options.q, options.heads, options.q_bias, 1);
  k_ = projection(options.k, options.kv_heads, options.k_bias, copies);
  v_ = projection(options.v, options.kv_heads, options.v_bias, copies);
  needs_dq_ = q_.output_needs_grad();
  needs_dk_ = k_.output_needs_grad();
  needs_dv_ = v_.output_needs_grad();
  if (has_norms_) {
    const auto head_norm = [&](const std::string& name, int heads, bool needs_grad) {
      return Norm(planner,
                  {.name = name,
                   .kind = NormKind::rms,
                   .features = options.head_dim,
                   .epsilon = options.norm_epsilon,
                   .heads = heads,
                   .partial_over_tp = true},
                  needs_grad);
    };
    q_norm_ = head_norm(options.q_norm, shape_.heads, needs_dq_);
    k_norm_ = head_norm(options.k_norm, shape_.kv_heads, needs_dk_);
    q_in_ = planner.tensor("q before norm", q_.out(), q_norm_.input_life());
    k_in_ = planner.tensor("k before norm", k_.out(), k_norm_.input_life());
    needs_dq_ = q_norm_.output_needs_grad();
    needs_dk_ = k_norm_.output_needs_grad();
  }
  const bool backward = needs_dq_ || needs_dk_ || needs_dv_;
  o_ = LinearLayer(planner,
                   {.name = options.o,
                    .in = options.heads * options.head_dim,
                    .out = options.hidden,
                    .bias = options.o_bias,
                    .split = Split::rows,
                    .init = {.scale = options.init_scale}},
                   backward);

  const Life kept = backward ? Life::kept : Life::scratch;
  q_out_ = planner.tensor("q", q_.out(), kept);
  k_out_ = planner.tensor("k", k_.out(), kept);
  v_out_ = planner.tensor("v", v_.out(), kept);
  mix_ = planner.tensor("attention", q_.out(), longer(kept, o_.input_life()));
  lse_ = planner.tensor("log-sum-exp", master_of(planner.dtype()), shape_.heads, kept);

  const std::int64_t flops = tile_flops(shape_);
  // Backward: the scores again, dP, dQ, dK, dV.
  const std::int64_t products = backward ? 2 + (needs_dq_ ? 1 : 0) + (needs_dk_ ? 1 : 0) + (needs_dv_ ? 1 : 0) : 0;
  planner.cost(
      {.forward = {.per_tile = 2 * flops}, .backward_input = {.per_tile = products * flops}, .backward_weight = {}});
  planner.mask(mask_);

  const auto gradient = [&](const LinearLayer& layer, const char* name, bool needed) -> SlotId {
    if (layer.grad_life() == Life::stash) return planner.tensor(name, layer.out(), Life::stash);
    if (needed) scratch_ += run::arena_bytes(planner.dtype(), RowCount::rows, layer.out());
    return kNone;
  };
  d_q_ = gradient(q_, "d q", needs_dq_);
  d_k_ = gradient(k_, "d k", needs_dk_);
  d_v_ = gradient(v_, "d v", needs_dv_);
  if (backward) scratch_ += run::arena_bytes(planner.dtype(), RowCount::rows, q_.out());
  // Of one projection at a time.
  scratch_ += larger(larger(q_.backward_scratch(), k_.backward_scratch()),
                     larger(v_.backward_scratch(), o_.backward_scratch()));
  if (input_needs_grad) {
    input_sum_ = TpSum(planner, planner.between_layers(), options.hidden, {Phase::backward_input});
    scratch_ += input_sum_.scratch();
  }
  planner.kernel_scratch([shape = shape_, dtype = planner.dtype(), backward](const Stream& stream, Phase phase,
                                                                             const plan::BlockSize& size,
                                                                             std::int64_t key_rows) -> std::int64_t {
    if (size.rows == 0) return 0;
    if (phase == Phase::forward || phase == Phase::recompute)
      return static_cast<std::int64_t>(
          ops::attention_forward_scratch(stream, shape, dtype, size.rows, std::max(size.rows, key_rows)));
    if (phase == Phase::backward_input && backward)
      return static_cast<std::int64_t>(ops::attention_backward_scratch(stream, shape, dtype, size.rows, size.rows));
    return 0;
  });
}

AttentionMask SelfAttention::mask_of(const Ctx& ctx) const {
  const auto& masks = ctx.rows->masks;
  MMT_CHECK(static_cast<std::size_t>(mask_) < masks.size(), "mask {} of {}", mask_, masks.size());
  const run::MaskRows& m = masks[static_cast<std::size_t>(mask_)];
  MMT_CHECK(m.tiles != nullptr, "mask {} has no tile plan", mask_);
  return {.query_words = m.query_words,
          .query_order = m.query_order,
          .key_words = m.key_words,
          .key_order = m.key_order,
          .tiles = m.tiles};
}

Tensor SelfAttention::log_sum_exp(const Saved& saved) const {
  return saved[lse_].reshape({shape_.heads, saved[lse_].rows()});
}

void SelfAttention::forward(Ctx& ctx, Saved& saved, const Tensor& y, const Tensor& x) const {
  const Tensor q = saved[q_out_], k = saved[k_out_], v = saved[v_out_];
  if (has_norms_) {
    q_.forward(ctx, saved, saved[q_in_], x);
    k_.forward(ctx, saved, saved[k_in_], x);
    q_norm_.forward(ctx, saved, q, saved[q_in_]);
    k_norm_.forward(ctx, saved, k, saved[k_in_]);
  } else {
    q_.forward(ctx, saved, q, x);
    k_.forward(ctx, saved, k, x);
  }
  v_.forward(ctx, saved, v, x);
  if (rotary_) {
    MMT_CHECK(ctx.rows->rotary.has_value(), "the block has no rotary tables");
    const run::RotaryRows& table = *ctx.rows->rotary;
    ops::rotary_apply(ctx.stream, ops::split_heads(q, shape_.heads), table.cos, table.sin, Direction::forward);
    ops::rotary_apply(ctx.stream, ops::split_heads(k, shape_.kv_heads), table.cos, table.sin, Direction::forward);
  }
  if (x.rows() > 0) {
    AttentionForwardArgs args{
        .out = saved[mix_], .lse = log_sum_exp(saved), .q = q, .k = k, .v = v, .mask = mask_of(ctx), .shape = shape_};
    args.shape.window = args.mask.tiles->window;
    if (ctx.cache != nullptr) {
      ops::scatter_rows(ctx.stream, ctx.cache->keys, k, ctx.cache_rows);
      ops::scatter_rows(ctx.stream, ctx.cache->values, v, ctx.cache_rows);
      const std::int64_t keys = args.mask.key_words.rows();
      args.k = ctx.cache->keys.row_range(0, keys);
      args.v = ctx.cache->values.row_range(0, keys);
    }
    ops::attention_forward(ctx.stream, args, *ctx.scratch);
  }
  o_.forward(ctx, saved, y, saved[mix_]);
}

void SelfAttention::backward_input(Ctx& ctx, Saved& saved, const Tensor& dx, const Tensor& dy) const {
  const ArenaScope scope(*ctx.scratch);
  if (!(needs_dq_ || needs_dk_ || needs_dv_)) {
    o_.backward_input(ctx, saved, {}, dy);
    return;
  }
  const auto buffer = [&](SlotId slot, bool needed, const LinearLayer& layer) {
    if (slot != kNone) return saved[slot];
    return needed ? ctx.scratch->take(dy.dtype, {dy.rows(), layer.out()}) : Tensor{};
  };
  const Tensor dq = buffer(d_q_, needs_dq_, q_), dk = buffer(d_k_, needs_dk_, k_), dv = buffer(d_v_, needs_dv_, v_);
  const Tensor d_mix = ctx.scratch->take(dy.dtype, {dy.rows(), q_.out()});
  o_.backward_input(ctx, saved, d_mix, dy);
  if (dy.rows() > 0) {
    AttentionBackwardArgs args{.dq = dq,
                               .dk = dk,
                               .dv = dv,
                               .d_out = d_mix,
                               .out = saved[mix_],
                               .lse = log_sum_exp(saved),
                               .q = saved[q_out_],
                               .k = saved[k_out_],
                               .v = saved[v_out_],
                               .mask = mask_of(ctx),
                               .shape = shape_};
    args.shape.window = args.mask.tiles->window;
    ops::attention_backward(ctx.stream, args, *ctx.scratch);
  }
  const auto turn_back = [&](const Tensor& d, int heads) {
    if (rotary_ && d.defined())
      ops::rotary_apply(ctx.stream, ops::split_heads(d, heads), ctx.rows->rotary->cos, ctx.rows->rotary->sin,
                        Direction::backward);
  };
  turn_back(dq, shape_.heads);
  turn_back(dk, shape_.kv_heads);
  if (has_norms_) {
    // Where the projection below needs no gradient, the norm's weights alone do.
    if (needs_dq_) q_norm_.backward_input(ctx, saved, q_.output_needs_grad() ? dq : Tensor{}, dq, saved[q_in_]);
    if (needs_dk_) k_norm_.backward_input(ctx, saved, k_.output_needs_grad() ? dk : Tensor{}, dk, saved[k_in_]);
  }
  Tensor partial;
  if (dx.defined()) partial = input_sum_.begin(ctx, dx);
  if (q_.output_needs_grad()) q_.backward_input(ctx, saved, partial, dq);
  if (k_.output_needs_grad()) k_.backward_input(ctx, saved, partial, dk, Accumulate::add);
  if (v_.output_needs_grad()) v_.backward_input(ctx, saved, partial, dv, Accumulate::add);
  if (dx.defined()) input_sum_.end(ctx, partial, dx);
}

void SelfAttention::backward_weight(Ctx& ctx, Saved& saved, const Tensor& dy, const Tensor& x) const {
  const auto at = [&](SlotId slot) { return slot == kNone ? Tensor{} : saved[slot]; };
  q_.backward_weight(ctx, saved, at(d_q_), x);
  k_.backward_weight(ctx, saved, at(d_k_), x);
  v_.backward_weight(ctx, saved, at(d_v_), x);
  if (has_norms_) {
    q_norm_.backward_weight(ctx, saved);
    k_norm_.backward_weight(ctx, saved);
  }
  o_.backward_weight(ctx, saved, dy, saved[mix_]);
}

}  // namespace mmt::models
