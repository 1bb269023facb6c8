#include "lockstep/comm/work.h"

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/foreign_backend.h"

namespace lockstep {

void Work::wait(std::chrono::milliseconds timeout) const {
  if (!work_) return;
  try {
    work_->wait(timeout);
  } catch (const c10::Error& error) {
    throw_backend_error(
        error, c10d::opTypeToString(work_->retrieveOpType()) + " failed");
  }
}

bool Work::is_completed() const { return !work_ || work_->isCompleted(); }

c10::intrusive_ptr<c10::ivalue::Future> Work::future() const {
  if (work_) return work_->getFuture();
  auto future = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()));
  future->markCompleted(c10::IValue(result_));
  return future;
}

int Work::source_rank() const {
  if (work_ && c10d::isP2POp(work_->retrieveOpType())) {
    return work_->sourceRank();
  }
  throw InvalidArgument("comm", {.code = ErrorCode::kMisuse,
                                 .what = "this call has no source rank",
                                 .expected = "the Work of irecv_any()"});
}

}  // namespace lockstep
