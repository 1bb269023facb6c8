#include "lockstep/comm/transport/message_work.h"

namespace lockstep {

MessageWork::MessageWork(int rank, c10d::OpType type, const at::Tensor& tensor)
    : QueuedWork(rank, type, {tensor}), dense_(tensor) {}

int MessageWork::sourceRank() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

void MessageWork::end(const std::exception_ptr& error, int source) {
  {
    const std::lock_guard lock(mutex_);
    source_ = source;
  }
  perform([&] {
    if (error) std::rethrow_exception(error);
    if (opType_ != c10d::OpType::SEND) dense_.write_back();
  });
}

}  // namespace lockstep
