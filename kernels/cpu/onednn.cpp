#include "kernels/cpu/onednn.h"

#include "kernels/cpu/isa.h"

#include "core/arena.h"

#include <dnnl.hpp>

#include <omp.h>

#include <array>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

// Exported by libdnnl.so.2 but not declared in its headers.
extern "C" dnnl_status_t dnnl_gemm_bf16bf16f32(char ta, char tb, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha,
                                               const std::uint16_t* a, dnnl_dim_t lda, const std::uint16_t* b,
                                               dnnl_dim_t ldb, float beta, float* c, dnnl_dim_t ldc);

namespace mmt::cpu::onednn {
namespace {

using Memory = dnnl::memory;
using Desc = dnnl::memory::desc;

constexpr std::int64_t kLayoutRows = 512;  // the rows that a packed layout is chosen for; it serves all others

void cap_library(const CpuIsa& isa) {
  dnnl_cpu_isa_t cap = dnnl_cpu_isa_all;
  if (isa.level == Isa::portable) cap = dnnl_cpu_isa_sse41;
  if (isa.level == Isa::avx2) cap = dnnl_cpu_isa_avx2;
  if (isa.level == Isa::avx512) cap = isa.avx512bf16 ? dnnl_cpu_isa_avx512_core_bf16 : dnnl_cpu_isa_avx512_core;
  if (!isa.amx && isa != detect_isa()) dnnl_set_max_cpu_isa(cap);
}

/// The cap must be set before the library's first other call.
void prepare() {
  static const bool once = (cap_library(cpu_isa()), true);
  static_cast<void>(once);
}

const dnnl::engine& engine() {
  static const dnnl::engine e = (prepare(), dnnl::engine(dnnl::engine::kind::cpu, 0));
  return e;
}

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

/// Threads that a call of the library from here runs on: part of what a primitive is made for.
int threads() { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

[[noreturn]] void refuse(const char* call, std::int64_t m, std::int64_t n, std::int64_t k, int status) {
  throw Error(fmt::format("oneDNN {}: status {} for ({}, {}) = ({}, {}) * ({}, {}) on {}", call, status, m, n, m, k, k,
                          n, name_of(cpu_isa())));
}

Memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
}

Desc matrix(DType dtype, std::int64_t rows, std::int64_t cols, std::int64_t ld, bool transposed = false) {
  return {{rows, cols}, type_of(dtype), transposed ? Memory::dims{1, ld} : Memory::dims{ld, 1}};
}

/// Only the library's blocked kernels beat its gemm; its other implementations may be far slower.
std::optional<dnnl::matmul::primitive_desc> describe(const Desc& a, const Desc& b, const Desc& bias, const Desc& c,
                                                     const dnnl::primitive_attr& attributes) {
  const dnnl::matmul::desc d = bias.is_zero() ? dnnl::matmul::desc(a, b, c) : dnnl::matmul::desc(a, b, bias, c);
  constexpr bool kAllowEmpty = true;
  dnnl::matmul::primitive_desc p(d, attributes, engine(), kAllowEmpty);
  if (!p || !std::string_view(p.impl_info_str()).starts_with("brg")) return std::nullopt;
  return p;
}

/// The blocked layout of a (k, n) matrix, chosen once for the process; zero where there is none.
Desc packed_layout(DType dtype, std::int64_t k, std::int64_t n) {
  static std::mutex mutex;
  static std::map<std::tuple<DType, std::int64_t, std::int64_t>, Desc> layouts;
  const std::lock_guard lock(mutex);
  const auto [at, fresh] = layouts.try_emplace({dtype, k, n});
  if (!fresh) return at->second;
  if (dtype == DType::bf16 && !cpu_isa().avx512bf16) return at->second;
  const Desc any({k, n}, type_of(dtype), Memory::format_tag::any);
  const auto p = describe(matrix(dtype, kLayoutRows, k, k), any, {}, matrix(dtype, kLayoutRows, n, n), {});
  if (!p) return at->second;
  const Desc layout = p->weights_desc();
  // Padding would be written at every use.
  const auto bytes = static_cast<std::size_t>(k * n * size_of(dtype));
  if (layout.data.format_kind == dnnl_blocked && layout.get_size() == bytes && layout.data.offset0 == 0)
    at->second = layout;
  return at->second;
}

struct Key {
  DType in, out;
  std::int64_t m, n, k, lda, ldb, ldc;
  bool b_transposed, packed, bias, add;
  int threads;
  auto operator<=>(const Key&) const = default;
};

struct Primitive {
  std::optional<dnnl::matmul> run;  ///< empty: the library has no blocked kernel
  Memory a, b, bias, c, scratchpad;
};

Primitive make(const Key& key) {
  Primitive made;
  const Desc b =
      key.packed ? packed_layout(key.in, key.k, key.n) : matrix(key.in, key.k, key.n, key.ldb, key.b_transposed);
  const Desc a = matrix(key.in, key.m, key.k, key.lda), c = matrix(key.out, key.m, key.n, key.ldc);
  const Desc bias = key.bias ? matrix(key.in, 1, key.n, key.n) : Desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (key.add) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  try {
    const auto description = describe(a, b, bias, c, attributes);
    if (!description) return made;
    const auto memory = [](const Desc& d) { return Memory(d, engine(), DNNL_MEMORY_NONE); };
    made.a = memory(a);
    made.b = memory(b);
    made.c = memory(c);
    if (key.bias) made.bias = memory(bias);
    made.scratchpad = memory(description->scratchpad_desc());
    made.run.emplace(*description);
  } catch (const dnnl::error& e) {
    refuse("could not make a product", key.m, key.n, key.k, static_cast<int>(e.status));
  }
  return made;
}

/// Primitives of one thread, the most recently used first.
class Kept {
 public:
  Primitive& at(const Key& key) {
    if (const auto found = places_.find(key); found != places_.end()) {
      items_.splice(items_.begin(), items_, found->second);
      return items_.front().second;
    }
    if (size() == kMaxPrimitives) {
      places_.erase(items_.back().first);
      items_.pop_back();
    }
    items_.emplace_front(key, make(key));
    places_.emplace(key, items_.begin());
    return items_.front().second;
  }
  std::int64_t size() const { return static_cast<std::int64_t>(places_.size()); }

 private:
  using Items = std::list<std::pair<Key, Primitive>>;
  Items items_;
  std::map<Key, Items::iterator> places_;
};

Kept& kept() {
  thread_local Kept k;
  return k;
}

/// Working memory of the calling thread's products; it only grows.
void* scratchpad(std::size_t bytes) {
  thread_local Buffer buffer;
  if (buffer.bytes() < bytes) buffer = Buffer(bytes);
  return buffer.data();
}

void point(Memory& memory, const void* data) { memory.set_data_handle(const_cast<void*>(data), stream()); }

}  // namespace

int gemm(std::int64_t m, std::int64_t n, std::int64_t k, Operand<float> a, Operand<float> b, float beta, float* c,
         std::int64_t ldc) {
  prepare();
  return dnnl_sgemm(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, a.data, a.ld, b.data, b.ld, beta,
                    c, ldc);
}

int gemm(std::int64_t m, std::int64_t n, std::int64_t k, Operand<bf16> a, Operand<bf16> b, float beta, float* c,
         std::int64_t ldc) {
  prepare();
  return dnnl_gemm_bf16bf16f32(a.transposed ? 'T' : 'N', b.transposed ? 'T' : 'N', m, n, k, 1.0f, &a.data->bits, a.ld,
                               &b.data->bits, b.ld, beta, c, ldc);
}

bool matmul(const Product& p) {
  const Key key{.in = p.in,
                .out = p.out,
                .m = p.m,
                .n = p.n,
                .k = p.k,
                .lda = p.lda,
                .ldb = p.packed ? 0 : p.ldb,
                .ldc = p.ldc,
                .b_transposed = !p.packed && p.b_transposed,
                .packed = p.packed,
                .bias = p.bias != nullptr,
                .add = p.add,
                .threads = threads()};
  Primitive& primitive = kept().at(key);
  if (!primitive.run) return false;
  point(primitive.a, p.a);
  point(primitive.b, p.b);
  point(primitive.c, p.c);
  point(primitive.scratchpad, scratchpad(primitive.scratchpad.get_desc().get_size()));
  std::array<dnnl_exec_arg_t, 5> args{{{DNNL_ARG_SRC, primitive.a.get()},
                                       {DNNL_ARG_WEIGHTS, primitive.b.get()},
                                       {DNNL_ARG_DST, primitive.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, primitive.scratchpad.get()},
                                       {DNNL_ARG_BIAS, nullptr}}};
  int num_args = 4;
  if (p.bias != nullptr) {
    point(primitive.bias, p.bias);
    args[4].memory = primitive.bias.get();
    num_args = 5;
  }
  const dnnl_status_t status = dnnl_primitive_execute(primitive.run->get(), stream().get(), num_args, args.data());
  if (status != dnnl_success) refuse("matmul", p.m, p.n, p.k, status);
  return true;
}

std::int64_t packed_bytes(DType dtype, std::int64_t k, std::int64_t n) {
  if (dtype != DType::f32 && dtype != DType::bf16) return 0;
  return static_cast<std::int64_t>(packed_layout(dtype, k, n).get_size());
}

void pack(DType dtype, std::int64_t k, std::int64_t n, void* packed, const void* b, std::int64_t ldb,
          bool b_transposed) {
  try {
    Memory from(matrix(dtype, k, n, ldb, b_transposed), engine(), const_cast<void*>(b));
    Memory to(packed_layout(dtype, k, n), engine(), packed);
    dnnl::reorder(from, to).execute(stream(), from, to);
  } catch (const dnnl::error& e) {
    refuse("could not pack a matrix", 0, n, k, static_cast<int>(e.status));
  }
}

std::int64_t kept_primitives() { return kept().size(); }

std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return fmt::format("{}.{}.{}", v->major, v->minor, v->patch);
}

}  // namespace mmt::cpu::onednn
