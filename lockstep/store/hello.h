#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/store/identity.h"

namespace lockstep::store {

// A client connects, and proves the key of its identity (SecureSocket). Then it
// sends a Hello, the server answers with an AdmissionReply, and requests and
// replies follow.
//
// A channel is a sequence of requests, each of which is sent after the answer
// to the one before. It outlives a connection that breaks: the client connects
// again, names the same channel, and repeats the request that has no answer.
//
// A store that is started again has another incarnation. It refuses the clients
// of the one before, which may have the same address, secret and run id.

inline constexpr uint32_t kProtocolVersion = 3;
/// The longest Hello or AdmissionReply.
inline constexpr size_t kMaxHelloBytes = 1024;

struct Hello {
  uint32_t version = kProtocolVersion;
  Identity identity;
  Token channel{};
};

std::string encode(const Hello& hello);
/// Decodes a Hello. If it has another version, only the version is read. Throws
/// CommError.
Hello decode_hello(std::string_view message);

enum class Admission : uint8_t {
  kWelcome = 0,
  kOtherJob = 1,
  kStaleRound = 2,
  kWrongWorldSize = 3,
  kDuplicateRank = 4,
  kFull = 5,
  kOtherVersion = 6,
  kOtherIncarnation = 7,
};

struct AdmissionReply {
  Admission admission = Admission::kWelcome;
  Token incarnation{};  ///< of the store
  std::string reason;   ///< why the client was refused
};

std::string encode(const AdmissionReply& reply);
AdmissionReply decode_admission_reply(std::string_view message);

}  // namespace lockstep::store
