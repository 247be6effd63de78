#include "parallel/run/param_bytes.h"

#include "parallel/run/store_params.h"

#include <array>
#include <map>
#include <string>
#include <utility>

namespace mmt::run {
namespace {

constexpr std::array kTransposes = {Transpose::no, Transpose::yes};

std::int64_t footprint(std::int64_t bytes) {
  return bytes == 0 ? 0 : static_cast<std::int64_t>(Arena::footprint(static_cast<std::size_t>(bytes)));
}

std::int64_t gradient_bytes(const ParamSpec& spec) {
  return spec.trainable ? footprint(num_owned(spec) * size_of(master_of(spec.dtype))) : 0;
}

}  // namespace

ParamBytes& ParamBytes::operator+=(const ParamBytes& o) {
  compute += o.compute;
  packed += o.packed;
  gradients += o.gradients;
  master += o.master;
  moments += o.moments;
  return *this;
}

DType master_dtype(const ParamSpec& spec) { return spec.trainable ? master_of(spec.dtype) : spec.dtype; }

std::int64_t packed_bytes(const ParamSpec& spec, Transpose transpose, const Stream& stream) {
  const bool forward = transpose == Transpose::yes;
  const std::int64_t count = num_owned(spec);
  if (spec.trainable || !(forward ? spec.forward_product : spec.input_product) || count == 0) return 0;
  const std::int64_t out = spec.box.shape[0], in = count / out;
  return ops::packed_bytes(stream, spec.dtype, transpose, forward ? in : out, forward ? out : in);
}

ParamBytes param_bytes(const ParamSpec& spec, const Stream& stream, int shards) {
  const std::int64_t count = num_owned(spec);
  ParamBytes bytes;
  bytes.compute = footprint(count * size_of(spec.dtype));
  bytes.gradients = gradient_bytes(spec);
  for (const Transpose t : kTransposes) bytes.packed += footprint(packed_bytes(spec, t, stream));
  if (!spec.trainable) return bytes;
  const std::int64_t share = footprint((count + shards - 1) / shards * size_of(master_of(spec.dtype)));
  if (master_dtype(spec) != spec.dtype) bytes.master = share;
  bytes.moments = 2 * share;
  return bytes;
}

ParamBytes param_bytes(const UnitPlan& unit, const Stream& stream, int shards) {
  ParamBytes bytes;
  for (const ParamSpec& p : unit.params) bytes += param_bytes(p, stream, shards);
  return bytes;
}

ParamBytes param_bytes(const Stage& stage, const Stream& stream, int shards) {
  ParamBytes bytes;
  std::map<std::pair<std::string, bool>, std::int64_t> packed;  // tied uses share one for each product
  std::map<std::string, int> uses;
  for (const auto& unit : stage.units) {
    for (const ParamSpec& p : unit->plan().params) {
      const std::string name = canonical_name(p);
      for (const Transpose t : kTransposes) {
        std::int64_t& size = packed[{name, t == Transpose::yes}];
        size = std::max(size, footprint(packed_bytes(p, t, stream)));
      }
      ParamBytes own = param_bytes(p, stream, shards);
      own.packed = 0;
      if (++uses[name] > 1) own = {.gradients = own.gradients};
      bytes += own;
    }
  }
  for (const auto& [key, size] : packed) bytes.packed += size;
  return bytes;
}

}  // namespace mmt::run
