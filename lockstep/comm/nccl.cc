#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "lockstep/comm/device_backends.h"
#include "lockstep/comm/foreign_backend.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  try {
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size,
                                                       options);
  } catch (const c10::DistBackendError& error) {
    throw_backend_error(
        error, fmt::format("rank {} of {} can't connect over nccl", rank, size),
        ErrorCode::kRanksNotConnected);
  }
}

}  // namespace lockstep
