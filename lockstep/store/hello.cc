#include "lockstep/store/hello.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {
namespace {

constexpr size_t kMaxRunIdBytes = 512;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxReasonBytes = 512;
constexpr int kMaxRanks = 1 << 20;

template <size_t N>
void read_into(FieldReader& reader, std::array<uint8_t, N>& bytes) {
  const std::string_view text = reader.raw(N);
  std::copy(text.begin(), text.end(), bytes.begin());
}

int count_of(FieldReader& reader, const char* what, int least) {
  const uint32_t value = reader.u32();
  if (value < static_cast<uint32_t>(least) || value > INT32_MAX) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a number in a message is out of range",
                     .got = fmt::format("{} {}", what, value)});
  }
  return static_cast<int>(value);
}

}  // namespace

std::string encode(const Hello& hello) {
  const Identity& self = hello.identity;
  if (self.run_id.size() > kMaxRunIdBytes) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "the job's name is too long",
                     .expected = fmt::format("{} bytes", kMaxRunIdBytes),
                     .got = std::to_string(self.run_id.size())});
  }
  return FieldWriter()
      .u32(hello.version)
      .u8(static_cast<uint8_t>(self.role))
      .raw(as_text(self.token))
      .raw(as_text(self.incarnation))
      .raw(as_text(hello.channel))
      .u32(static_cast<uint32_t>(self.rank))
      .u32(static_cast<uint32_t>(self.world_size))
      .u32(static_cast<uint32_t>(self.round))
      .bytes(self.run_id)
      .bytes(self.name.substr(0, kMaxNameBytes))
      .take();
}

Hello decode_hello(std::string_view message) {
  FieldReader reader(message);
  Hello hello;
  hello.version = reader.u32();
  if (hello.version != kProtocolVersion) return hello;
  Identity& peer = hello.identity;
  peer.role = static_cast<Role>(reader.u8());
  if (peer.role != Role::kAgent && peer.role != Role::kWorker) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a client is neither an agent nor a worker"});
  }
  read_into(reader, peer.token);
  read_into(reader, peer.incarnation);
  read_into(reader, hello.channel);
  peer.rank = count_of(reader, "rank", 0);
  peer.world_size = count_of(reader, "world size", 1);
  peer.round = count_of(reader, "round", 0);
  peer.run_id = reader.bytes(kMaxRunIdBytes);
  peer.name = reader.bytes(kMaxNameBytes);
  reader.end();
  if (peer.rank >= peer.world_size || peer.world_size > kMaxRanks) {
    throw CommError(
        {.code = ErrorCode::kStoreProtocol,
         .what = "a client's rank is out of range",
         .got = fmt::format("rank {} of {}", peer.rank, peer.world_size)});
  }
  return hello;
}

std::string encode(const AdmissionReply& reply) {
  return FieldWriter()
      .u8(static_cast<uint8_t>(reply.admission))
      .raw(as_text(reply.incarnation))
      .bytes(reply.reason.substr(0, kMaxReasonBytes))
      .take();
}

AdmissionReply decode_admission_reply(std::string_view message) {
  FieldReader reader(message);
  AdmissionReply reply;
  reply.admission = static_cast<Admission>(reader.u8());
  read_into(reader, reply.incarnation);
  reply.reason = reader.bytes(kMaxReasonBytes);
  reader.end();
  return reply;
}

}  // namespace lockstep::store
