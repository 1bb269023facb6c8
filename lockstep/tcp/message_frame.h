#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/transport/failure_text.h"

namespace lockstep::tcp {

// The protocol of two ranks over their connection. Each rank is a sender and a
// receiver at the same time.
//
//   sender                                receiver
//
//   a small message, while the receiver has space for it:
//     kMessage(tag, bytes) + data  ---->  keeps it until a receive wants it
//                                  <----  kCredit(bytes), after some receives
//
//   any other message:
//     kAnnounce(id, tag, bytes)    ---->  keeps this until a receive wants it
//                                  <----  kAccept(id)
//     kData(id, bytes) + data      ---->  stores it in the receive's memory
//     ...
//     kData(id, bytes) + data      ---->  the receive is done
//
//   the receive has another size:  <----  kRefuse(id), instead of kAccept
//   the send fails:
//     kWithdraw(id)                ---->  instead of the data that is left
//   the receive fails:             <----  kDrop(id), after kAccept
//     kWithdraw(id)                ---->  unless all data was sent before
//
//   the rank leaves or fails:
//     kLeave, or kFail + reason    ---->  closes the connection
//
// Messages are matched with receives in the order of kMessage and kAnnounce.
// Data comes in chunks, so that a small message is not delayed by a large one,
// and a failed send has to copy at most one chunk, because bytes that were
// promised by a header must still be sent after the caller has its memory back.
//
// After kAccept there is always an end that both know: the last byte, or
// kWithdraw. A message may be withdrawn while its kAccept or kRefuse is on the
// way, so an answer about an older message that is gone is ignored.
enum class FrameKind : uint32_t {
  kMessage = 1,
  kAnnounce,
  kAccept,
  kRefuse,
  kDrop,
  kData,
  kWithdraw,
  kCredit,
  kFail,
  kLeave,
};

/// The header before each frame.
struct Frame {
  FrameKind kind{};
  int32_t tag = 0;
  uint64_t bytes = 0;
  uint64_t id = 0;  ///< number of a message that was announced, from 1
};
static_assert(sizeof(Frame) == 24, "a frame has no padding");

/// Largest message that is sent without asking.
inline constexpr size_t kEagerBytes = 4096;
/// Bytes of small messages that a receiver keeps for each sender, and how many
/// of them each message takes besides its data.
inline constexpr uint64_t kMaxCredit = 64 * 1024;
inline constexpr uint64_t kCreditPerMessage = 64;
/// Announced messages that a receiver keeps for each sender.
inline constexpr size_t kMaxAnnouncedBytes = size_t{1} << 20;
inline constexpr size_t kChunkBytes = 256 * 1024;
inline constexpr size_t kReasonBytes = sizeof(transport::FailureText);

/// Returns the error for a peer that breaks these rules.
inline CommError protocol_error(const std::string& what) {
  return CommError({.code = ErrorCode::kCollectiveFailed,
                    .what = "it violated the message protocol: " + what});
}

}  // namespace lockstep::tcp
