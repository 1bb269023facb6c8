#include "lockstep/shm/p2p_operation.h"

#include <utility>

#include <fmt/format.h>

namespace lockstep::shm {

std::string P2pOperation::describe() const {
  const std::string its = fmt::format("({} bytes, tag {})", bytes, tag);
  if (kind == Kind::kSend) return fmt::format("send to rank {} {}", peer, its);
  if (peer == kAnySource) return fmt::format("receive from any rank {}", its);
  return fmt::format("receive from rank {} {}", peer, its);
}

FinishedOperation::FinishedOperation(P2pOperation operation, int source,
                                     std::exception_ptr error,
                                     std::function<void()> last_step)
    : operation_(std::move(operation)),
      source_(source),
      error_(std::move(error)),
      last_step_(std::move(last_step)) {}

void FinishedOperation::run() {
  try {
    if (last_step_) last_step_();
  } catch (...) {
    error_ = std::current_exception();
  }
  operation_.done(std::move(error_), source_);
}

}  // namespace lockstep::shm
