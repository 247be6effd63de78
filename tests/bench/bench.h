// What the files of mmtrain-bench share: cases that produce rows, how a call is timed, the machine's own limits.
#pragma once

#include "core/arena.h"
#include "core/stream.h"

#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace mmt::bench {

/// Seconds of one call over the repeats.
struct Seconds {
  double best = 0.0;
  double median = 0.0;
};

/// What this machine does at best, measured in the same process at one number of threads. Per second: flops, bytes.
struct Limits {
  double fma_f32 = 0.0;    ///< a loop of fused multiply-adds on registers, at the process's instruction set
  double dot_bf16 = 0.0;   ///< the same with bf16 pairs (tiles with AMX); fma_f32 where the set has no such instruction
  double gemm_f32 = 0.0;   ///< the matrix library at a large square
  double gemm_bf16 = 0.0;  ///< bf16 to f32
  double copy = 0.0;       ///< 256 MiB to another place, read and written bytes counted
  double in_place = 0.0;   ///< 256 MiB scaled where they are, read and written bytes counted
};

enum class Traffic : std::uint8_t { copy, in_place };

/// Memory of its own, gone through once a call: copied to another place, or scaled where it is. What an op that moves
/// bytes is held against. `touched` bytes: both sides of the copy, or the one place that is read and written.
class MemoryPass {
 public:
  MemoryPass(Traffic traffic, std::int64_t touched);
  void operator()() const;
  double moved() const;  ///< bytes read and written by a call

 private:
  std::int64_t floats_;
  OwnedTensor from_, to_;
};

/// One line of the output. Rates count per second; `higher_is_better` false: a size or a time.
struct Row {
  std::string name;
  std::string unit;  ///< GF/s, GB/s, tok/s, GB, ... (unit_scale knows them)
  double best = 0.0;
  double median = 0.0;
  std::string limit_name;  ///< what it is held against
  double limit = 0.0;      ///< in the row's unit; 0: nothing
};
/// What a figure in plain units (flops, bytes, pieces) is divided by to be in `unit`.
double unit_scale(const std::string& unit);

/// A line for people; a JSON object with the keys name, figure, unit, limit, share, best, median and limit_name (limit
/// and share are null where there is nothing to hold it against).
void print_table(const Row& row);
void print_json(const Row& row);

/// Runs one case: times calls and collects rows.
class Bench {
 public:
  Bench(int threads, int repeats) : threads_(threads), repeats_(repeats) {}

  int threads() const { return threads_; }
  int repeats() const { return repeats_; }
  /// Measured at the first use, kept by number of threads; 0: those of this bench.
  const Limits& limits(int threads = 0) const;

  /// One or two calls to warm up, then the repeats; short calls are repeated inside one until it takes 2 ms.
  Seconds time(const std::function<void()>& call) const;
  /// A rate: `amount` of plain units a call.
  void rate(const std::string& name, const std::string& unit, double amount, Seconds seconds,
            const std::string& limit_name, double limit);
  /// A rate of moving memory: `bytes` read and written a call. The limit is a MemoryPass of as much, timed in turns
  /// with the calls: what memory gives changes from one second to the next where others share it.
  void memory_rate(const std::string& name, double bytes, const std::function<void()>& call, Traffic traffic);
  /// Anything else, in the row's own unit.
  void add(Row row) { rows_.push_back(std::move(row)); }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  int threads_;
  int repeats_;
  std::vector<Row> rows_;
};

/// Rows that are measured together. `measure` may leave rows out that the machine cannot do.
struct Case {
  std::vector<std::string> names;
  std::function<void(Bench&)> measure;
  int threads = 0;  ///< 0: as asked for on the command line
};
using Cases = std::vector<Case>;

// One function a file.
void add_products(Cases& cases);
void add_attention(Cases& cases);
void add_row_ops(Cases& cases);
void add_head(Cases& cases);
void add_optimizer(Cases& cases);
void add_stems(Cases& cases);
void add_data(Cases& cases);
void add_planning(Cases& cases);
void add_reduction(Cases& cases);
void add_steps(Cases& cases);

/// A linear layer's matrix and the rows that it is applied to.
struct ProductShape {
  std::int64_t rows, out, in;
  auto operator<=>(const ProductShape&) const = default;
};
/// Every shape in the steps of add_steps, each once.
std::vector<ProductShape> step_products();

/// All limits of `threads` threads, measured now. The caller's number of OpenMP threads is restored.
Limits measure_limits(int threads);
/// Limits measured so far that a second measurement misses by more than a tenth, as "name: before, now".
std::vector<std::string> disturbed_limits();

/// Seconds of the matrix library alone: c (m, n) = a b, f32 result, added to it for a weight gradient, operands of
/// `dtype` in the layout of a linear layer. The faster of the plain library call and the backend's own way.
enum class Layout : std::uint8_t { forward, input_gradient, weight_gradient };
double library_seconds(Layout layout, DType dtype, std::int64_t rows, std::int64_t out, std::int64_t in);

/// A tensor of values in [-1, 1] that repeat after 2,001 elements.
OwnedTensor filled(DType dtype, std::initializer_list<std::int64_t> shape);

}  // namespace mmt::bench
