// The type of parameter gradients and row statistics beside activations of type T.
#pragma once

#include <type_traits>

namespace mmt::cpu {

template <class T> using Master = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace mmt::cpu
