#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/store/identity.h"
#include "lockstep/store/session.h"

namespace lockstep::store {

// How a connection begins:
//
//   client  Hello: who it is, and a nonce
//   server  Challenge: a nonce
//   client  Proof: HMAC over both
//   server  AdmissionReply: what it decides, and HMAC over both and that; after
//   a
//           wrong proof one without HMAC, which only says that it was wrong
//
// Each side has then seen that the other knows the client's key, now and not
// in a recording. Both derive the session's keys from it and both messages.

inline constexpr uint32_t kProtocolVersion = 1;
/// No message of a handshake is longer.
inline constexpr size_t kMostHandshakeBytes = 1024;

struct Hello {
  uint32_t version = kProtocolVersion;
  Identity identity;
  Digest nonce{};
};

std::string encode(const Hello& hello);
/// Throws CommError. Of another version only that number is read.
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
  std::string reason;  ///< of a refusal
};

/// The admission_reply on a wrong proof. It proves nothing: its receiver knows
/// another key, and takes any admission_reply that it can't check for this one.
std::string encode_wrong_proof();

/// One handshake as both sides see it after two messages.
class Handshake {
 public:
  Handshake(const Key& key, std::string_view hello, std::string_view challenge);

  std::string proof() const;
  bool is_proof(std::string_view message) const;

  std::string encode(const AdmissionReply& admission_reply) const;
  /// Nothing if it is of somebody without the key. Throws CommError if it is
  /// no admission_reply.
  std::optional<AdmissionReply> decode_admission_reply(
      std::string_view message) const;

  Session client_session() const;
  Session server_session() const;

 private:
  Key key_;  // of this connection alone
};

}  // namespace lockstep::store
