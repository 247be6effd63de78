#include "kernels/adamw.h"

#include "kernels/dispatch.h"

namespace mmt::ops {

void adamw_step(const Stream& stream, std::span<const AdamwSpan> spans, const AdamwStep& step) {
  if (spans.empty()) return;
  MMT_CHECK(step.updates >= 1, "adamw: update number {}", step.updates);
  const DType master = spans.front().master.dtype;
  MMT_CHECK(master == DType::f32 || master == DType::f64, "adamw: master weights {}", spans.front().master.describe());
  for (const AdamwSpan& s : spans) {
    const std::int64_t count = s.master.rows();
    check_vector(stream, s.master, count, master, "adamw: master");
    check_vector(stream, s.m, count, master, "adamw: m");
    check_vector(stream, s.v, count, master, "adamw: v");
    check_vector(stream, s.grad, count, master, "adamw: grad");
    if (!s.compute.defined()) continue;
    check_vector(stream, s.compute, count, s.compute.dtype, "adamw: compute");
    MMT_CHECK(s.compute.dtype == master || s.compute.dtype == DType::bf16, "adamw: compute weights {} of master {}",
              s.compute.describe(), s.master.describe());
  }
  table_for(stream, master).adamw.step(stream, spans, step);
}

}  // namespace mmt::ops
