#pragma once

#include <cstdint>
#include <string>

#include "tests/differential/case.h"

namespace lockstep::differential {

/// The case of this number: a function of its arguments alone. `kind`: dp,
/// world or ddp. Calls no LibTorch.
Case generate(const std::string& kind, uint64_t seed);

/// Likewise, a training program. `kind`: dp, shm or tcp, the ranks of a world,
/// or ddp. In about an eighth of the programs, one rank differs from the
/// others, and in another eighth, a member of the module changes.
Case generate_program(const std::string& kind, uint64_t seed);

}  // namespace lockstep::differential
