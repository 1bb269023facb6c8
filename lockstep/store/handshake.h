#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/store/identity.h"
#include "lockstep/store/session.h"

namespace lockstep::store {

// The handshake of a connection:
//
//   client  Hello: its identity, and a nonce
//   server  Challenge: a nonce
//   client  Proof: HMAC over both
//   server  AdmissionReply: whether the client is admitted, and HMAC over both
//           messages and the reply; after a wrong proof a reply without HMAC,
//           which only says that the proof was wrong
//
// Each side has then proven that it knows the client's key. The nonces make
// sure that no message is a replay. Both sides derive the keys of the session
// from the client's key and the first two messages.

inline constexpr uint32_t kProtocolVersion = 1;
/// The longest message of a handshake.
inline constexpr size_t kMostHandshakeBytes = 1024;

struct Hello {
  uint32_t version = kProtocolVersion;
  Identity identity;
  Digest nonce{};
};

std::string encode(const Hello& hello);
/// Decodes a Hello. If it has another version, only the version is read. Throws
/// CommError.
Hello decode_hello(std::string_view message);

struct Challenge {
  uint32_t version = kProtocolVersion;
  Digest nonce{};
};

std::string encode(const Challenge& challenge);
Challenge decode_challenge(std::string_view message);

enum class Admission : uint8_t {
  kWelcome = 0,
  kOtherJob = 1,
  kStaleRound = 2,
  kWrongWorldSize = 3,
  kDuplicateRank = 4,
  kFull = 5,
  kWrongProof = 6,
};

struct AdmissionReply {
  Admission admission = Admission::kWelcome;
  std::string reason;  ///< why the client was refused
};

/// Returns the reply to a wrong proof. It has no HMAC itself: the client knows
/// another key, and treats every reply that it can't check as this one.
std::string encode_wrong_proof();

/// A handshake after its first two messages, on either side.
class Handshake {
 public:
  Handshake(const Key& key, std::string_view hello, std::string_view challenge);

  std::string proof() const;
  bool is_proof(std::string_view message) const;

  std::string encode(const AdmissionReply& reply) const;
  /// Returns nothing if the sender does not know the key. Throws CommError if
  /// the reply is malformed.
  std::optional<AdmissionReply> decode_admission_reply(
      std::string_view message) const;

  Session client_session() const;
  Session server_session() const;

 private:
  Key key_;  // derived for this connection only
};

}  // namespace lockstep::store
