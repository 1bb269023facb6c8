#include "lockstep/comm/queued_work.h"

#include <utility>

#include <ATen/core/ivalue.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/work_queue.h"

namespace lockstep {
namespace {

/// Returns the title as c10d expects it: null instead of an empty one.
const char* title_of(const ProfilerEvent& event) {
  return event.title.empty() ? nullptr : event.title.c_str();
}

}  // namespace

QueuedWork::QueuedWork(int rank, c10d::OpType type,
                       std::vector<at::Tensor> outputs,
                       uint64_t sequence_number, const ProfilerEvent& event)
    : Work(rank, type, title_of(event), event.inputs),
      outputs_(std::move(outputs)),
      sequence_number_(sequence_number) {}

c10::intrusive_ptr<c10::ivalue::Future> QueuedWork::getFuture() {
  const std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()));
    if (completed_) complete(*future_, exception_);
  }
  return future_;
}

bool QueuedWork::wait(std::chrono::milliseconds timeout) {
  WorkQueue::help_with(*this);
  if (timeout == kNoTimeout) return Work::wait(timeout);
  std::unique_lock lock(mutex_);
  if (!cv_.wait_for(lock, timeout, [&] { return completed_; })) {
    throw CommError(
        {.code = ErrorCode::kCollectiveFailed,
         .what = fmt::format("rank {} timed out in a wait for {}", rank_,
                             c10d::opTypeToString(opType_)),
         .expected = fmt::format("its end within {} ms", timeout.count()),
         .fix = "wait again: the call itself continues"});
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void QueuedWork::perform(const std::function<void()>& task) {
  std::exception_ptr failure;
  try {
    const torch::NoGradGuard no_grad;
    task();
  } catch (...) {
    failure = std::current_exception();
  }
  finish(failure);
}

bool QueuedWork::has_pending_future() const {
  const std::lock_guard lock(mutex_);
  return future_ && !future_->completed();
}

void QueuedWork::complete_future() {
  if (!has_pending_future()) return;
  // Without the lock, because the future's callbacks may use this work.
  complete(*future_, exception());
}

void QueuedWork::complete(c10::ivalue::Future& future,
                          const std::exception_ptr& error) const {
  if (error) {
    future.setError(error);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

int MessageWork::sourceRank() const {
  const std::lock_guard lock(mutex_);
  return source_;
}

c10::intrusive_ptr<c10::ivalue::Future> MessageWork::getFuture() {
  throw InvalidArgument("comm", {.code = ErrorCode::kMisuse,
                                 .what = "a message has no future",
                                 .expected = "the Work of a collective",
                                 .fix = "call wait()"});
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
