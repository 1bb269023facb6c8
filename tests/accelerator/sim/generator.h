#pragma once

#include <ATen/core/Generator.h>

namespace lockstep::sim {

const at::Generator& default_generator(int index);
at::Generator new_generator(int index);
/// Returns the generator of the CPU that a kernel, which is enqueued now with
/// `generator`, draws from when it runs. After a new seed or state it is
/// another one, so kernels that are still waiting keep theirs.
at::Generator for_kernel(const at::Generator& generator);

}  // namespace lockstep::sim
