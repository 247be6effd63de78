// From the configuration to a layout: meshes as written, stages as written or cut by what each layer costs.
#pragma once

#include "apps/mmtrain/config.h"
#include "core/data/index.h"
#include "core/data/preprocess.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/step.h"

#include <string>
#include <vector>

namespace mmt::app {

/// How encoder `e`'s blocks look.
plan::EncoderRows encoder_rows_of(const EncoderConfig& encoder);

/// By module: the sizes of a full microbatch of the first samples of `index`; what costs of layers are compared at.
std::vector<plan::BlockSize> typical_block(const Config& config, const data::DatasetIndex& index,
                                           const data::Preparation& preparation);

struct LayoutChoice {
  plan::Layout layout;
  std::string reason;  ///< of the stages that were cut here; empty: all were written
};
/// The layout that the configuration asks for. Where stages are `auto`, a module's or the whole chain's units are cut
/// so that the slowest stage is as fast as it can be, by the FLOPs that each unit needs under its frozen pattern for
/// one block of these sizes. Throws ConfigError.
LayoutChoice make_layout(const Config& config, const std::vector<plan::BlockSize>& sizes);
/// Every module on rank 0.
plan::Layout one_rank_layout(const Config& config);

}  // namespace mmt::app
