#include "apps/mmtrain/memory.h"

#include "parallel/run/param_bytes.h"

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

int state_shards(const Model& model, int stage) {
  return model.zero[model.module_of(stage)] ? model.layout.lanes() : 1;
}

std::int64_t expected_bytes(const Model& model, const Engine& engine, const Stream& stream) {
  std::int64_t bytes = engine.capacity_bytes() + engine.rows_bytes();
  for (const int s : model.own)
    bytes += run::param_bytes(model.stages[static_cast<std::size_t>(s)], stream, state_shards(model, s)).total();
  return bytes;
}

std::int64_t resident_bytes() { return 1024 * status_kib("VmRSS:"); }
std::int64_t peak_resident_bytes() { return 1024 * status_kib("VmHWM:"); }

}  // namespace mmt::app
