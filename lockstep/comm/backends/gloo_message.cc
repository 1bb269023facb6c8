#include "lockstep/comm/backends/gloo_message.h"

#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/blocked_sigpipe.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

c10d::OpType type_of(const shm::P2pOperation& operation) {
  if (operation.kind == shm::P2pOperation::Kind::kSend)
    return c10d::OpType::SEND;
  return operation.peer == shm::kAnySource ? c10d::OpType::RECVANYSOURCE
                                           : c10d::OpType::RECV;
}

c10::intrusive_ptr<c10d::Work> start(c10d::Backend& gloo,
                                     const shm::P2pOperation& operation,
                                     const at::Tensor& bytes) {
  std::vector<at::Tensor> tensors{bytes};
  if (operation.kind == shm::P2pOperation::Kind::kSend) {
    return gloo.send(tensors, operation.peer, operation.tag);
  }
  return operation.peer == shm::kAnySource
             ? gloo.recvAnysource(tensors, operation.tag)
             : gloo.recv(tensors, operation.peer, operation.tag);
}

}  // namespace

CommError gloo_error(const RankNames& names, int rank,
                     const std::string& operation,
                     const std::exception& error) {
  // Gloo writes "Timed out". Programs look for the words in lower case.
  const std::string got = first_line(text_of(error));
  const bool is_timeout = got.find("imed out") != std::string::npos;
  return CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("{} {} in {} over gloo",
                           names->at(static_cast<size_t>(rank)),
                           is_timeout ? "timed out" : "failed", operation),
       .got = got,
       .fix = fmt::format("look at the other ranks ({}): one of them ended, "
                          "stalled or called something else; "
                          "LOCKSTEP_DEBUG=detail compares the calls",
                          fmt::join(*names, ", "))});
}

GlooMessage::GlooMessage(c10d::Backend& gloo, RankNames names,
                         const shm::P2pOperation& operation,
                         const at::Tensor& tensor, Timeout timeout)
    : Work(gloo.getRank(), type_of(operation)),
      names_(std::move(names)),
      description_(operation.describe()),
      is_receive_(operation.kind == shm::P2pOperation::Kind::kReceive),
      outputs_{tensor},
      dense_(tensor),
      timeout_(timeout) {
  const BlockedSigpipe blocked;
  try {
    gloo_work_ = start(gloo, operation, byte_view(dense_.dense()));
  } catch (const std::exception& error) {
    throw gloo_error(names_, rank_, description_, error);
  }
}

bool GlooMessage::wait(Timeout timeout) {
  const std::lock_guard waiting(waiting_);
  if (!isCompleted()) end(timeout == kNoTimeout ? timeout_ : timeout);
  if (exception()) std::rethrow_exception(exception());
  return true;
}

void GlooMessage::end(Timeout timeout) {
  std::exception_ptr failure;
  try {
    const torch::NoGradGuard no_grad;
    gloo_work_->wait(timeout);
    if (is_receive_) dense_.write_back();
  } catch (const std::exception& error) {
    failure =
        std::make_exception_ptr(gloo_error(names_, rank_, description_, error));
  }
  finish(failure);
}

c10::intrusive_ptr<c10::ivalue::Future> GlooMessage::getFuture() {
  throw InvalidArgument("comm", {.code = ErrorCode::kMisuse,
                                 .what = "a message over gloo has no future",
                                 .fix = "wait() for it, or use shm"});
}

int GlooMessage::sourceRank() const { return gloo_work_->sourceRank(); }

}  // namespace lockstep
