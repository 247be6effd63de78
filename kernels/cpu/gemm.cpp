// Which of the library's ways a product takes (figures: kernels/README.md):
//   * the matmul primitive, made for the shape: forward products of few or middling rows, all bf16 products with a bf16
//     result (it rounds once on the way out), and every product with a packed matrix
//   * sgemm and the bf16 gemm, which take any shape: the rest, above all weight gradients, with beta = 1
// bf16 is widened to f32 where the machine does not multiply it. A bf16 result that the primitive does not make is
// computed into f32 in blocks of rows that stay in the cache, then rounded once.
// The way depends on the shape alone, so that equal calls have equal bits.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/tables.h"

#include "core/arena.h"

#include <atomic>

namespace mmt::cpu {
namespace {

using onednn::Operand;

constexpr std::int64_t kBlockRows = 256;           // enough for the packing of b to cost little
constexpr std::int64_t kBlockFloats = 256 * 1024;  // of f32 results at a time and thread

// Products under this many multiplications are over before a primitive for a new shape is made.
constexpr std::int64_t kPrimitiveWork = 100'000'000;
constexpr std::int64_t kPrimitiveRows = 32;  // with fewer the gemm reads b in place, the primitive rearranges it
// Up to these sizes the gemm shares a forward product's work badly among the threads.
constexpr std::int64_t kFewRows = 512, kMiddlingRows = 2048, kMiddlingColumns = 2048;
constexpr std::int64_t kLongSum = 16384;  // terms: the primitive falls behind the blocks

/// A scratch block of the calling thread that only grows.
float* scratch(int slot, std::int64_t floats) {
  thread_local Buffer buffers[3];
  Buffer& b = buffers[slot];
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  if (b.bytes() < bytes) b = Buffer(bytes);
  return static_cast<float*>(b.data());
}

void check_status(int status, const Tensor& c, const Tensor& a, const Tensor& b) {
  if (status != 0)
    throw Error(fmt::format("oneDNN could not multiply {} by {} into {} (status {}) on {}", a.describe(), b.describe(),
                            c.describe(), status, name_of(cpu_isa())));
}

std::int64_t stride_of(const Tensor& t) { return std::max(t.row_stride, t.cols()); }

template <class T> Operand<T> operand_of(const Tensor& t, Transpose transpose) {
  return {t.as<T>(), stride_of(t), transpose == Transpose::yes};
}

/// The whole of t as f32 in this thread's scratch.
template <Isa kLevel> Operand<float> widened(int slot, const Tensor& t, Transpose transpose) {
  float* to = scratch(slot, t.numel());
  const Rows<float> out{to, t.cols()};
  const auto in = rows_of<const bf16>(t);
  each_piece(t.rows(), t.cols(), false, [&](Piece p) { inner_of<bf16>(kLevel).to_f32(p(out), p(in), p.rows, p.cols); });
  return {to, t.cols(), transpose == Transpose::yes};
}

/// Columns of a block: few row blocks are cut by columns too, so that some threads find work; a multiple of 64.
std::int64_t columns_of_block(std::int64_t m, std::int64_t n) {
  const std::int64_t row_blocks = (m + kBlockRows - 1) / kBlockRows;
  const std::int64_t wanted = row_blocks == 1 ? 4 : row_blocks < 4 ? 2 : 1;
  const std::int64_t share = ((n + wanted - 1) / wanted + 63) / 64 * 64;
  return std::min({n, kBlockFloats / kBlockRows, std::max<std::int64_t>(share, 128)});
}

/// bf16 c = [c +] a b [+ bias], the f32 product of a block of rows at a time, rounded on the way out.
/// Blocks have the same rows whatever the number of threads; each is one call of the library on one thread.
template <Isa kLevel, class T>
int multiply_blocks(const Tensor& c, std::int64_t k, Operand<T> a, Operand<T> b, const bf16* bias, bool add) {
  const std::int64_t m = c.rows(), n = c.cols();
  const std::int64_t block_cols = columns_of_block(m, n);
  const std::int64_t row_blocks = (m + kBlockRows - 1) / kBlockRows, col_blocks = (n + block_cols - 1) / block_cols;
  const auto out = rows_of<bf16>(c);
  std::atomic<int> status = 0;
  parallel_shares(row_blocks * col_blocks, 1, m * n * k, [&](std::int64_t first, std::int64_t count) {
    float* product = scratch(0, kBlockFloats);
    for (std::int64_t i = first; i < first + count; ++i) {
      const std::int64_t row = i / col_blocks * kBlockRows, col = i % col_blocks * block_cols;
      const std::int64_t rows = std::min(kBlockRows, m - row), cols = std::min(block_cols, n - col);
      Operand<T> block_a = a, block_b = b;
      block_a.data += a.transposed ? row : row * a.ld;
      block_b.data += b.transposed ? col * b.ld : col;
      const int result = onednn::gemm(rows, cols, k, block_a, block_b, 0.0f, product, cols);
      if (result != 0) {
        status = result;
        return;
      }
      inner_of<bf16>(kLevel).store_product(advance(out, row, col), {product, cols}, bias ? bias + col : nullptr, add,
                                           rows, cols);
    }
  });
  return status;
}

/// Every row of the f32 tensor becomes the bias; the product is then added to it.
void fill_rows(const Tensor& c, const Tensor& bias) {
  const auto out = rows_of<float>(c);
  const std::int64_t cols = c.cols();
  visit_fast(bias.dtype, [&]<class T>() {
    const T* b = bias.as<T>();
    parallel_shares(c.rows(), 1, c.rows() * cols, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t r = first; r < first + count; ++r) {
        float* row = out.base + r * out.stride;
        for (std::int64_t j = 0; j < cols; ++j) row[j] = static_cast<float>(b[j]);
      }
    });
  });
}

template <Isa kLevel, class T>
int run(const Tensor& c, std::int64_t k, Operand<T> a, Operand<T> b, const GemmOptions& options) {
  const bool add = options.accumulate == Accumulate::add;
  if (c.dtype == DType::bf16)
    return multiply_blocks<kLevel>(c, k, a, b, options.bias.defined() ? options.bias.as<bf16>() : nullptr, add);
  const bool biased = options.bias.defined();
  if (biased) fill_rows(c, options.bias);
  return onednn::gemm(c.rows(), c.cols(), k, a, b, add || biased ? 1.0f : 0.0f, c.as<float>(), stride_of(c));
}

/// Whether the primitive is the faster way for (m, n) = (m, k) * (k, n) with b as it is stored.
bool prefers_primitive(DType in, DType out, Transpose tb, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m < kPrimitiveRows) return false;
  if (out == DType::bf16) return k < kLongSum;
  if (tb == Transpose::no) return in == DType::bf16 && m <= kFewRows;
  return m <= kFewRows || (m <= kMiddlingRows && n <= kMiddlingColumns);
}

bool by_primitive(Transpose ta, Transpose tb, const Tensor& c, const Tensor& a, const Tensor& b,
                  const GemmOptions& options) {
  if (ta == Transpose::yes) return false;
  const std::int64_t m = c.rows(), n = c.cols(), k = a.cols();
  if (m * n * k < kPrimitiveWork) return false;
  const bool packed = options.packed.defined();
  if (!packed && !prefers_primitive(a.dtype, c.dtype, tb, m, n, k)) return false;
  return onednn::matmul({.m = m,
                         .n = n,
                         .k = k,
                         .in = a.dtype,
                         .out = c.dtype,
                         .a = a.data,
                         .lda = stride_of(a),
                         .b = packed ? options.packed.data : b.data,
                         .ldb = stride_of(b),
                         .b_transposed = tb == Transpose::yes,
                         .packed = packed,
                         .bias = options.bias.data,
                         .c = c.data,
                         .ldc = stride_of(c),
                         .add = options.accumulate == Accumulate::add});
}

template <Isa kLevel> void gemm(const Stream& stream, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a,
                                const Tensor& b, const GemmOptions& options) {
  const std::int64_t k = a.dims[ta == Transpose::yes ? 0 : 1];
  if (k == 0) {
    reference_gemm().gemm(stream, ta, tb, c, a, b, options);
    return;
  }
  const bool native = kLevel == Isa::avx512 && cpu_isa().avx512bf16;
  if ((a.dtype == DType::f32 || native) && by_primitive(ta, tb, c, a, b, options)) return;
  int status;
  if (a.dtype == DType::f32)
    status = run<kLevel, float>(c, k, operand_of<float>(a, ta), operand_of<float>(b, tb), options);
  else if (native)
    status = run<kLevel, bf16>(c, k, operand_of<bf16>(a, ta), operand_of<bf16>(b, tb), options);
  else
    status = run<kLevel, float>(c, k, widened<kLevel>(1, a, ta), widened<kLevel>(2, b, tb), options);
  check_status(status, c, a, b);
}

std::int64_t packed_bytes(const Stream&, DType dtype, Transpose, std::int64_t k, std::int64_t n) {
  // In f32 a second copy gains a few percent of the forward products and nothing in a whole step.
  return dtype == DType::f32 ? 0 : onednn::packed_bytes(dtype, k, n);
}

void pack(const Stream&, const Tensor& packed, Transpose tb, const Tensor& b) {
  const bool t = tb == Transpose::yes;
  onednn::pack(b.dtype, b.dims[t ? 1 : 0], b.dims[t ? 0 : 1], packed.data, b.data, stride_of(b), t);
}

}  // namespace

GemmTable cpu_gemm(Isa level) {
  return for_level(
      level, []<Isa kLevel>() { return GemmTable{.gemm = gemm<kLevel>, .packed_bytes = packed_bytes, .pack = pack}; });
}

}  // namespace mmt::cpu
