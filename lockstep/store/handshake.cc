#include "lockstep/store/handshake.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {
namespace {

constexpr std::string_view kMagic = "LKSTORE";
constexpr size_t kMaxRunIdBytes = 512;
constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxReasonBytes = 512;
constexpr int kMaxRanks = 1 << 20;

template <size_t N>
void read_into(FieldReader& reader, std::array<uint8_t, N>& bytes) {
  const std::string_view text = reader.raw(N);
  std::copy(text.begin(), text.end(), bytes.begin());
}

void read_magic(FieldReader& reader) {
  if (reader.raw(kMagic.size()) != kMagic) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "the other side is not a client or server of "
                             "Lockstep's store",
                     .got = "a message of another protocol"});
  }
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

std::string body_of(const AdmissionReply& reply) {
  return FieldWriter()
      .u8(static_cast<uint8_t>(reply.admission))
      .raw(as_text(reply.incarnation))
      .bytes(reply.reason.substr(0, kMaxReasonBytes))
      .take();
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
      .raw(kMagic)
      .u32(hello.version)
      .raw(as_text(hello.nonce))
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
  read_magic(reader);
  hello.version = reader.u32();
  if (hello.version != kProtocolVersion) return hello;
  read_into(reader, hello.nonce);
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

std::string encode(const Challenge& challenge) {
  return FieldWriter()
      .raw(kMagic)
      .u32(challenge.version)
      .raw(as_text(challenge.nonce))
      .take();
}

Challenge decode_challenge(std::string_view message) {
  FieldReader reader(message);
  Challenge challenge;
  read_magic(reader);
  challenge.version = reader.u32();
  read_into(reader, challenge.nonce);
  reader.end();
  return challenge;
}

std::string encode_wrong_proof() {
  return FieldWriter()
      .raw(as_text(Digest{}))
      .raw(body_of({.admission = Admission::kWrongProof}))
      .take();
}

Handshake::Handshake(const Key& key, std::string_view hello,
                     std::string_view challenge)
    : key_(derived(key, {"connection", hello, challenge})) {}

std::string Handshake::proof() const {
  return std::string(as_text(Mac(key_).of({"client proof"})));
}

bool Handshake::is_proof(std::string_view message) const {
  return is_same(Mac(key_).of({"client proof"}), message);
}

std::string Handshake::encode(const AdmissionReply& reply) const {
  const std::string body = body_of(reply);
  return FieldWriter()
      .raw(as_text(Mac(key_).of({"server proof", body})))
      .raw(body)
      .take();
}

std::optional<AdmissionReply> Handshake::decode_admission_reply(
    std::string_view message) const {
  FieldReader reader(message);
  const std::string_view code = reader.raw(sizeof(Digest));
  const std::string_view body = message.substr(sizeof(Digest));
  if (!is_same(Mac(key_).of({"server proof", body}), code)) return std::nullopt;
  AdmissionReply reply;
  reply.admission = static_cast<Admission>(reader.u8());
  read_into(reader, reply.incarnation);
  reply.reason = reader.bytes(kMaxReasonBytes);
  reader.end();
  return reply;
}

Session Handshake::client_session() const {
  return {derived(key_, {"to the server"}), derived(key_, {"to the client"})};
}

Session Handshake::server_session() const {
  return {derived(key_, {"to the client"}), derived(key_, {"to the server"})};
}

Session::Session(const Key& sending, const Key& receiving)
    : sending_(sending), receiving_(receiving) {}

std::string Session::seal(std::string_view body) {
  const std::string number = FieldWriter().u64(sent_++).take();
  const Digest code = sending_.of({number, body});
  return FieldWriter()
      .u32(static_cast<uint32_t>(body.size() + code.size()))
      .raw(as_text(code))
      .raw(body)
      .take();
}

std::string_view Session::open(std::string_view frame) {
  const std::string number = FieldWriter().u64(received_).take();
  FieldReader reader(frame);
  const std::string_view code = reader.raw(sizeof(Digest));
  const std::string_view body = frame.substr(sizeof(Digest));
  if (!is_same(receiving_.of({number, body}), code)) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a message on a connection of the store is not "
                             "the peer's next one",
                     .got = "one that was altered, repeated or injected"});
  }
  ++received_;
  return body;
}

}  // namespace lockstep::store
