#include "lockstep/tcp/message_operation.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::tcp {

std::string MessageOperation::describe() const {
  const std::string its = fmt::format("({} bytes, tag {})", bytes, tag);
  if (kind == Kind::kSend) return fmt::format("send to rank {} {}", peer, its);
  if (peer == kAnySource) return fmt::format("receive from any rank {}", its);
  return fmt::format("receive from rank {} {}", peer, its);
}

void check_peer(int peer, int rank, int ranks) {
  if (peer >= 0 && peer < ranks && peer != rank) return;
  throw InvalidArgument(
      "comm",
      {.code = ErrorCode::kBadRank,
       .what = peer == rank ? "a rank can't send to or receive from itself"
                            : "there is no such rank",
       .expected = fmt::format("another rank from 0 to {}", ranks - 1),
       .got = std::to_string(peer)});
}

std::exception_ptr left_during(const MessageOperation& operation, int rank) {
  return std::make_exception_ptr(CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("rank {} left the group during its {}", rank,
                           operation.describe()),
       .fix = "wait for pending messages before you destroy the group"}));
}

std::exception_ptr ended_by(const std::string& end,
                            const MessageOperation& operation, int rank) {
  return std::make_exception_ptr(
      CommError({.code = ErrorCode::kCollectiveFailed,
                 .what = fmt::format("{}; that ends rank {}'s {}", end, rank,
                                     operation.describe()),
                 .fix = "look at that rank's own output"}));
}

std::exception_ptr timed_out(const MessageOperation& operation, int rank,
                             const std::string& whereabouts) {
  return std::make_exception_ptr(CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("rank {}'s {} timed out: it was not done in time",
                           rank, operation.describe()),
       .got = whereabouts,
       .fix = "look at what that rank does; if it only needs longer, raise the "
              "timeout"}));
}

std::exception_ptr wrong_size(int source, uint64_t sent_bytes, int tag,
                              int rank, uint64_t bytes) {
  return std::make_exception_ptr(CommError(
      {.code = ErrorCode::kCallsDiffer,
       .what = fmt::format("rank {} sent {} bytes with tag {}, rank {} "
                           "receives {}",
                           source, sent_bytes, tag, rank, bytes),
       .fix = "make both ranks' tensors of one size and type, or their "
              "tags differ"}));
}

}  // namespace lockstep::tcp
