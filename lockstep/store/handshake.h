#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/store/identity.h"

namespace lockstep::store {

// The handshake of a connection:
//
//   client  Hello: its identity, its channel, and a nonce
//   server  Challenge: a nonce
//   client  Proof: HMAC over both
//   server  AdmissionReply: whether the client is admitted, and HMAC over both
//           messages and the reply; after a wrong proof a reply without HMAC,
//           which only says that the proof was wrong
//
// Each side has then proven that it knows the client's key. The nonces make
// sure that no message is a replay. Both sides derive the keys of the session
// from the client's key and the first two messages.
//
// A channel is a sequence of requests, each of which is sent after the answer
// to the one before. It outlives a connection that breaks: the client connects
// again, names the same channel, and repeats the request that has no answer.
//
// A store that is started again has another incarnation. It refuses the clients
// of the one before, which may have the same address, secret and run id.

inline constexpr uint32_t kProtocolVersion = 2;
/// The longest message of a handshake.
inline constexpr size_t kMaxHandshakeBytes = 1024;

struct Hello {
  uint32_t version = kProtocolVersion;
  Identity identity;
  Token channel{};
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
  kOtherIncarnation = 7,
};

struct AdmissionReply {
  Admission admission = Admission::kWelcome;
  Token incarnation{};  ///< of the store
  std::string reason;   ///< why the client was refused
};

/// Returns the reply to a wrong proof. It has no HMAC itself: the client knows
/// another key, and treats every reply that it can't check as this one.
std::string encode_wrong_proof();

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
