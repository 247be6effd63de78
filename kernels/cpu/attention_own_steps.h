// The order of own work, and what it asks for ahead of time. Internal; for the units of one instruction set (see
// simd.h).
#pragma once

#include "kernels/cpu/attention_own_mask.h"
#include "kernels/cpu/attention_rows.h"

namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE {

/// Stripes that pass over the keys together: three at most, and none is left alone behind others.
static inline int own_chunk(int stripes) { return stripes == 4 ? 2 : stripes < 3 ? stripes : 3; }

/// The step of own work that follows (kv head, query head of it): the rest of the heads, then the next item.
struct OwnStep {
  const OwnItem* item;
  int kv_head, of;
};
static inline OwnStep step_after(const OwnItem& item, const OwnItem& next, int kv_head, int of, int repeat) {
  if (of + 1 < repeat) return {&item, kv_head, of + 1};
  if (kv_head + 1 < item.last_head) return {&item, kv_head + 1, 0};
  return {&next, next.first_head, 0};
}
static inline bool is_step(const OwnStep& s) { return s.kv_head < s.item->last_head; }

/// Asks for the rows of a step: its queries' in `in` and `out`, and with the first query head of a key head the keys
/// and values.
template <class Work, std::size_t n>
static void own_fetch(Fetch& f, const Work& w, const OwnStep& step, const RowsIn (&in)[n], const RowsOut& out) {
  const TileLists& l = w.lists;
  const int query0 = l.query_start[step.item->first_query], queries = l.query_start[step.item->last_query];
  const int key0 = l.key_start[step.item->first_key], keys = l.key_start[step.item->last_key];
  const int head = step.kv_head * w.repeat + step.of;
  if (step.of == 0)
    for (const RowsIn& rows : {w.k, w.v}) plan_fetch(f, rows, key0, keys, step.kv_head, w.head_dim);
  for (const RowsIn& rows : in) plan_fetch(f, rows, query0, queries, head, w.head_dim);
  plan_fetch(f, out, query0, queries, head, w.head_dim);
}

static void own_fetch(Fetch& f, const OwnForward& w, const OwnStep& step) {
  if (is_step(step)) own_fetch(f, w, step, {w.q}, w.out);
}

static void own_fetch(Fetch& f, const OwnBackward& w, const OwnStep& step) {
  if (!is_step(step)) return;
  own_fetch(f, w, step, {w.q, w.d_out, w.out}, w.dq);
  const TileLists& l = w.lists;
  const int key0 = l.key_start[step.item->first_key], keys = l.key_start[step.item->last_key];
  if (step.of == 0)
    for (const RowsOut& rows : {w.dk, w.dv}) plan_fetch(f, rows, key0, keys, step.kv_head, w.head_dim);
}

/// How many rows to ask for before each of the products, so that all are asked for in time.
static int64_t own_fetch_rows(const OwnMask& m, const Fetch& f, int passes, int rows_of_product, int64_t products = 0) {
  for (int s = 0, chunk = 0; s < m.stripes; s += chunk) {
    chunk = own_chunk(m.stripes - s);
    for (int g = 0; g * rows_of_product < m.keys; ++g) {
      const Span both = within(m.stripes_of_keys[g], {s, s + chunk});
      products += both.first < both.last ? passes : 0;
    }
  }
  return products == 0 ? 0 : f.rows / products + 1;
}

}  // namespace mmt::cpu::attention::MMT_SIMD_NAMESPACE
