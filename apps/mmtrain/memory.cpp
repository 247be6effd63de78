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

std::int64_t resident_bytes() { return 1024 * status_kib("VmRSS:"); }
std::int64_t peak_resident_bytes() { return 1024 * status_kib("VmHWM:"); }

}  // namespace mmt::app
