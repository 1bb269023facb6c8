#include "lockstep/comm/queue/message_work.h"

#include <utility>

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

shm::P2pDone done_of(c10::intrusive_ptr<MessageWork> work,
                     CallbackThreads& threads) {
  return [work = std::move(work), &threads](const std::exception_ptr& error,
                                            int source) {
    work->end(error, source);
    if (work->has_pending_future()) {
      threads.run([work] { work->complete_future(); });
    }
  };
}

}  // namespace lockstep
