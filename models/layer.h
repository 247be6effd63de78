// What all layers of this folder share: the names of the stage contract, and small helpers around it.
//
// A layer is a plain class made from a UnitPlanner: its constructor declares parameters, saved tensors, events and
// costs, its methods work on what a Ctx and a Saved bring. Layers own no tensors.
//
// Frozen-aware: every constructor gets `input_needs_grad` and derives op by op which gradients exist. What no backward
// reads is scratch; what only backward_input reads is kept; inputs of trainable products are held, their output
// gradients stashed. Gradients of biases and norm weights are one row: backward_input sums them into a stash of one row
// and backward_weight moves them, so that no (rows, features) tensor lives on for them.
#pragma once

#include "kernels/accumulate.h"
#include "parallel/run/stage.h"

namespace mmt::models {

using plan::Axis;
using plan::Linear;
using run::Ctx;
using run::Init;
using run::Life;
using run::ParamId;
using run::ParamSpec;
using run::Phase;
using run::PortPlan;
using run::RowCount;
using run::Saved;
using run::SlotId;
using run::UnitPlanner;

inline constexpr int kNone = -1;  ///< no parameter, no slot

/// How a linear layer is cut over the tensor-parallel axis.
enum class Split : std::uint8_t {
  whole,    ///< every tp rank holds all of it and computes the same
  columns,  ///< a rank holds a range of the outputs; the input gradient is a partial sum, which the caller adds up
  rows,     ///< a rank holds a range of the inputs; the product is summed over tp here
};

inline Linear operator+(Linear a, const Linear& b) { return a += b; }
Linear larger(const Linear& a, const Linear& b);  ///< the maximum of each coefficient
/// 2 * in * out for each row of `count`: FLOPs of a product.
Linear product_flops(RowCount count, std::int64_t in, std::int64_t out);

inline Life longer(Life a, Life b) { return a < b ? b : a; }

/// A slot for the one-row gradient of a vector parameter, between backward_input and backward_weight.
SlotId plan_row_gradient(UnitPlanner& planner, const std::string& name, std::int64_t cols);
/// Moves it into the parameter's gradient.
void move_row_gradient(Ctx& ctx, ParamId param, const Tensor& row);

/// Writes or adds zeros: what a parameter's gradient becomes when a block has no rows for it.
void zero_gradient(const Ctx& ctx, const run::GradTarget& target);

/// Rows of the block that belong to items or samples; those after it are the tail of a quantum.
std::int64_t used_rows(const run::Rows& rows);
/// Zeroes the tail rows of `x`.
void zero_tail(const Ctx& ctx, const Tensor& x);

/// The sum over tp of partial results: of a row-split product, or of the input gradients of column-split ones. With one
/// rank it does nothing. Partial sums of bf16 travel in f32 and are rounded once. Where `count` is a share of the rows,
/// partial results have all rows and a rank gets the sum of its share.
class TpSum {
 public:
  TpSum() = default;
  TpSum(UnitPlanner& planner, RowCount count, std::int64_t cols, std::initializer_list<Phase> phases,
        std::uint8_t when = run::kAlways);
  bool active() const { return active_; }
  /// Where the partial result goes: `out` itself, or a tensor of the scratch arena.
  Tensor begin(Ctx& ctx, const Tensor& out) const;
  void end(Ctx& ctx, const Tensor& partial, const Tensor& out) const;
  Linear scratch() const;

 private:
  bool active_ = false;
  DType compute_ = DType::f32;
  RowCount count_ = RowCount::rows;
  std::int64_t cols_ = 0;
};

}  // namespace mmt::models
