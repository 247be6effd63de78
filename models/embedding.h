// First unit of a decoder: token rows, media rows written over them by the edges' ports, optional learned positions.
#pragma once

#include "kernels/embedding.h"
#include "models/layer.h"

#include <vector>

namespace mmt::models {

/// One edge that writes rows into the embedding buffer.
struct EmbeddingPort {
  std::string name;  ///< of the encoder
  bool needs_grad = false;
};

struct EmbeddingOptions {
  std::string unit;    ///< "llm.embed"
  std::string tokens;  ///< parameter "<tokens>.weight" (vocabulary, hidden)
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::vector<EmbeddingPort> ports;
  std::string positions;  ///< parameter "<positions>.weight" (max_positions, hidden); empty: none
  std::int64_t max_positions = 0;
  double init_scale = 0.02;
};

/// Over tp each rank holds a share of the vocabulary; learned positions are whole everywhere.
/// Row r = table[ids[r]], zero where ids[r] is -1; then port k's row i overwrites row port_dst[k][i]; then positions
/// are added. Inputs: the ports in order.
class EmbeddingUnit final : public run::Unit {
 public:
  EmbeddingUnit(const UnitPlanner::Setting& setting, const EmbeddingOptions& options);

  void forward(Ctx& ctx, std::span<const Tensor> in, const Tensor& out, Saved& saved) const override;
  void backward_input(Ctx& ctx, const Tensor& d_out, std::span<const Tensor> d_in, Saved& saved) const override;
  void backward_weight(Ctx& ctx, Saved& saved) const override;
  void recompute(Ctx&, Saved&) const override {}

 private:
  ParamId tokens_ = kNone, positions_ = kNone;
  VocabularyShard shard_;
  bool cut_ = false;
};

}  // namespace mmt::models
