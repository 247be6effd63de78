// Small hand-written units for the contract test: every feature of the stage contract once, no model family.
#pragma once

#include "parallel/run/stage.h"

#include <functional>
#include <string>

namespace mmt::testing {

struct UnitOptions {
  DType dtype = DType::f64;
  int tp = 1;
  int tp_rank = 0;
  std::function<bool(const std::string&)> trainable = [](const std::string&) { return true; };
  bool input_needs_grad = true;  ///< of the unit's "x"
};

inline constexpr std::int64_t kWidth = 8, kHidden = 12, kVocabulary = 11, kSourceCols = 5;

/// x = source W^T over the module's media rows (source rows = rows).
std::unique_ptr<run::Unit> make_stem(const std::string& module, const UnitOptions& options);
/// y = x + gelu(x W1^T) W2^T, W1 split by columns and W2 by rows over tp: one linear pair.
std::unique_ptr<run::Unit> make_mlp(const std::string& module, const std::string& name, const UnitOptions& options);
/// y = rotate(x) * g by 3-D positions and a gain per column: positions reach a unit through Rows.
std::unique_ptr<run::Unit> make_rotation(const std::string& module, const std::string& name,
                                         const UnitOptions& options);
/// y = this tp rank's share of the rows of x, and x = all ranks' shares.
std::unique_ptr<run::Unit> make_cut(const std::string& module, const UnitOptions& options);
std::unique_ptr<run::Unit> make_join(const std::string& module, const UnitOptions& options);
/// y = gather(x, out_rows) W^T.
std::unique_ptr<run::Unit> make_projector(const std::string& module, const UnitOptions& options);
/// y = table[ids] with the rows of port `port` written over.
std::unique_ptr<run::Unit> make_embedding(const std::string& module, const std::string& port, bool port_needs_grad,
                                          const UnitOptions& options);
/// Cross-entropy of gather(x, supervised rows) T^T, T = the embedding's table (tied by name).
std::unique_ptr<run::Unit> make_head(const std::string& module, const UnitOptions& options);

/// The 3-D rotary spec that make_rotation works with.
run::RotarySpec test_rotary();

}  // namespace mmt::testing
