// The main of every test program: Catch2's, with poisoned memory.
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

#include "core/arena.h"

int main(int argc, char* argv[]) {
  mmt::set_poisoning(true);
  return Catch::Session().run(argc, argv);
}
