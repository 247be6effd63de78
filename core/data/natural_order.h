// The order of numbered names: "img2" before "img10".
#pragma once

#include <string_view>

namespace mmt::data {

/// Runs of digits compare by their value, everything else byte by byte. A total order: "a01" and "a1" differ, too.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace mmt::data
