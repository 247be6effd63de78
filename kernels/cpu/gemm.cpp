// Matrix products through oneDNN 2.x: the one file that includes its header.
//
// f32 goes to dnnl_sgemm. bf16 goes to dnnl_gemm_bf16bf16f32 where the machine multiplies bf16, and is widened to f32
// elsewhere (the library has no fast bf16 product there). Both take any shape without preparation, which ragged batches
// need: a primitive per shape would cost up to half a millisecond for every new number of rows.
// A bf16 result is computed into f32 in blocks of rows that stay in the cache, then rounded once.
#include "kernels/cpu/driver.h"
#include "kernels/cpu/tables.h"

#include "core/arena.h"

#include <dnnl.h>

#include <atomic>

// Exported by libdnnl.so.2 but not declared in its headers.
extern "C" dnnl_status_t dnnl_gemm_bf16bf16f32(char ta, char tb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                               const std::uint16_t* a, dnnl_dim_t lda, const std::uint16_t* b,
                                               dnnl_dim_t ldb, float beta, float* c, dnnl_dim_t ldc);

namespace mmt::cpu {
namespace {

constexpr std::int64_t kBlockRows = 256;           // enough for the packing of b to cost little
constexpr std::int64_t kBlockFloats = 256 * 1024;  // of f32 results at a time and thread

void cap_library(const CpuIsa& isa) {
  dnnl_cpu_isa_t cap = dnnl_cpu_isa_all;
  if (isa.level == Isa::portable) cap = dnnl_cpu_isa_sse41;
  if (isa.level == Isa::avx2) cap = dnnl_cpu_isa_avx2;
  if (isa.level == Isa::avx512) cap = isa.avx512bf16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core;
  if (!isa.amx && isa != detect_isa()) dnnl_set_max_cpu_isa(cap);
}

void check_library() {
  static const bool once = (cap_library(cpu_isa()), true);
  static_cast<void>(once);
}

/// A scratch block of the calling thread that only grows.
float* scratch(int slot, std::int64_t floats) {
  thread_local Buffer buffers[3];
  Buffer& b = buffers[slot];
  const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
  if (b.bytes() < bytes) b = Buffer(bytes);
  return static_cast<float*>(b.data());
}

/// A matrix operand: pointer and row stride. T: float or bf16.
template <class T> struct Operand {
  const T* data;
  std::int64_t ld;
  bool transposed;
};

dnnl_status_t multiply(std::int64_t m, std::int64_t n, std::int64_t k, Operand<float> a, Operand<float> b, float beta,
                       float* c, std::int64_t ldc) {
  return dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.ld, b.data, b.ld, beta,
                    c, ldc);
}

dnnl_status_t multiply(std::int64_t m, std::int64_t n, std::int64_t k, Operand<bf16> a, Operand<bf16> b, float beta,
                       float* c, std::int64_t ldc) {
  return dnnl_gemm_bf16bf16f32(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, &a.data->bits, a.ld,
                               &b.data->bits, b.ld, beta, c, ldc);
}

void check_status(dnnl_status_t status, const Tensor& c, const Tensor& a, const Tensor& b) {
  if (status != dnnl_success)
    throw Error(fmt::format("oneDNN could not multiply {} by {} into {} (status {}) on {}", a.describe(), b.describe(),
                            c.describe(), static_cast<int>(status), name_of(cpu_isa())));
}

template <class T> Operand<T> operand_of(const Tensor& t, Transpose transpose) {
  return {t.as<T>(), std::max(t.row_stride, t.cols()), transpose == Transpose::yes};
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
dnnl_status_t multiply_blocks(const Tensor& c, std::int64_t k, Operand<T> a, Operand<T> b, const bf16* bias, bool add) {
  const std::int64_t m = c.rows(), n = c.cols();
  const std::int64_t block_cols = columns_of_block(m, n);
  const std::int64_t row_blocks = (m + kBlockRows - 1) / kBlockRows, col_blocks = (n + block_cols - 1) / block_cols;
  const auto out = rows_of<bf16>(c);
  std::atomic<dnnl_status_t> status = dnnl_success;
  parallel_shares(row_blocks * col_blocks, 1, m * n * k, [&](std::int64_t first, std::int64_t count) {
    float* product = scratch(0, kBlockFloats);
    for (std::int64_t i = first; i < first + count; ++i) {
      const std::int64_t row = i / col_blocks * kBlockRows, col = i % col_blocks * block_cols;
      const std::int64_t rows = std::min(kBlockRows, m - row), cols = std::min(block_cols, n - col);
      Operand<T> block_a = a, block_b = b;
      block_a.data += a.transposed ? row : row * a.ld;
      block_b.data += b.transposed ? col * b.ld : col;
      const dnnl_status_t result = multiply(rows, cols, k, block_a, block_b, 0.0f, product, cols);
      if (result != dnnl_success) {
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
dnnl_status_t run(const Tensor& c, std::int64_t k, Operand<T> a, Operand<T> b, const GemmOptions& options) {
  const bool add = options.accumulate == Accumulate::add;
  if (c.dtype == DType::bf16)
    return multiply_blocks<kLevel>(c, k, a, b, options.bias.defined() ? options.bias.as<bf16>() : nullptr, add);
  const bool biased = options.bias.defined();
  if (biased) fill_rows(c, options.bias);
  return multiply(c.rows(), c.cols(), k, a, b, add || biased ? 1.0f : 0.0f, c.as<float>(),
                  std::max(c.row_stride, c.cols()));
}

template <Isa kLevel> void gemm(const Stream& stream, Transpose ta, Transpose tb, const Tensor& c, const Tensor& a,
                                const Tensor& b, const GemmOptions& options) {
  check_library();
  const std::int64_t k = a.dims[ta == Transpose::yes ? 0 : 1];
  if (k == 0) {
    reference_gemm().gemm(stream, ta, tb, c, a, b, options);
    return;
  }
  const bool native = kLevel == Isa::avx512 && cpu_isa().avx512bf16;
  dnnl_status_t status;
  if (a.dtype == DType::f32)
    status = run<kLevel, float>(c, k, operand_of<float>(a, ta), operand_of<float>(b, tb), options);
  else if (native)
    status = run<kLevel, bf16>(c, k, operand_of<bf16>(a, ta), operand_of<bf16>(b, tb), options);
  else
    status = run<kLevel, float>(c, k, widened<kLevel>(1, a, ta), widened<kLevel>(2, b, tb), options);
  check_status(status, c, a, b);
}

}  // namespace

GemmTable cpu_gemm(Isa level) {
  return for_level(level, []<Isa kLevel>() { return GemmTable{.gemm = gemm<kLevel>}; });
}

}  // namespace mmt::cpu
