#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lockstep/comm/backends/backends.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const BackendOptions& options) {
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(
      options.store, options.rank, options.size, nccl_options);
}

}  // namespace lockstep
