// What a call throws.
#pragma once

#include <concepts>
#include <exception>
#include <string>

namespace mmt::test {

/// The message of the exception of type `E` that the call ends with; empty where it ends with none.
template <class E = std::exception> std::string message_of(std::invocable auto&& call) {
  try {
    call();
  } catch (const E& e) {
    return e.what();
  }
  return "";
}

}  // namespace mmt::test
