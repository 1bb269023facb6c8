#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/store/key.h"

namespace lockstep::store {

/// Protects the messages of one connection after its handshake. Each message
/// has an HMAC over its number and its content, with a separate key for each
/// direction. This detects messages that were altered, injected, repeated,
/// dropped, reordered or sent back. The content is not encrypted.
class Session {
 public:
  Session(const Key& sending, const Key& receiving);

  /// Returns the frame for `body`.
  std::string seal(std::string_view body);
  /// Returns the content of a frame. It is valid as long as `frame`. Throws
  /// CommError if it is not the peer's next message. The connection can't be
  /// used after that.
  std::string_view open(std::string_view frame);

 private:
  Mac sending_, receiving_;
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace lockstep::store
