#include "apps/mmtrain/memory.h"

#include <fstream>
#include <string>

namespace mmt::app {
namespace {

std::int64_t status_kib(const std::string& key) {
  std::ifstream in("/proc/self/status");
  std::string word;
  while (in >> word) {
    std::int64_t value = 0;
    if (word == key && in >> value) return value;
  }
  return 0;
}

}  // namespace

std::int64_t expected_bytes(Model& model, const Engine& engine) {
  std::int64_t bytes = engine.capacity_bytes() + engine.rows_bytes();
  for (const int s : model.own) {
    run::ParameterStore& store = *model.stores[static_cast<std::size_t>(s)];
    bytes += store.packed_bytes();
    for (const run::ParamState& p : store.params()) bytes += p.grad.bytes();  // every use of a tied one has its own
  }
  for (const run::PlacedParam& placed : model.params(false)) {
    const run::ParamState* p = placed.state;
    bytes += p->master.bytes() + (p->compute.data == p->master.data ? 0 : p->compute.bytes());
    bytes += 2 * p->grad.bytes();  // moments
  }
  return bytes;
}

std::int64_t resident_bytes() { return 1024 * status_kib("VmRSS:"); }
std::int64_t peak_resident_bytes() { return 1024 * status_kib("VmHWM:"); }

}  // namespace mmt::app
