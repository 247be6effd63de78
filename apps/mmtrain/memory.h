// The process's memory as the system sees it, and what the program expects it to be.
#pragma once

#include <cstdint>

namespace mmt::app {

std::int64_t resident_bytes();       ///< now (VmRSS)
std::int64_t peak_resident_bytes();  ///< so far (VmHWM)

}  // namespace mmt::app
