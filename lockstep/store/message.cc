#include "lockstep/store/message.h"

#include "lockstep/base/error.h"
#include "lockstep/store/wire.h"

namespace lockstep::store {
namespace {

bool names_one_key(Operation operation) {
  return operation != Operation::kCheck && operation != Operation::kWait &&
         operation != Operation::kCount && operation != Operation::kBeginRound;
}

}  // namespace

size_t Limits::message_bytes() const {
  // A compare-and-set has two values.
  return 2 * value_bytes + 64 * key_bytes + 4096;
}

std::string encode(const Request& request) {
  FieldWriter writer;
  writer.u8(static_cast<uint8_t>(request.operation))
      .u64(request.id)
      .u64(static_cast<uint64_t>(request.number))
      .u32(request.wait_ms)
      .u32(static_cast<uint32_t>(request.keys.size()));
  for (const auto& key : request.keys) writer.bytes(key);
  return writer.bytes(request.value).bytes(request.expected).take();
}

Request decode_request(std::string_view message, const Limits& limits) {
  FieldReader reader(message);
  Request request;
  request.operation = static_cast<Operation>(reader.u8());
  if (request.operation < Operation::kSet ||
      request.operation > Operation::kSetLastWill) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a request to the store is of an unknown kind"});
  }
  request.id = reader.u64();
  request.number = static_cast<int64_t>(reader.u64());
  request.wait_ms = reader.u32();
  const size_t count = reader.u32();
  if (count > limits.keys_a_request ||
      (names_one_key(request.operation) && count != 1)) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a request to the store has too many or too few "
                             "keys",
                     .got = std::to_string(count)});
  }
  for (size_t i = 0; i < count; ++i) {
    request.keys.push_back(reader.bytes(limits.key_bytes));
  }
  request.value = reader.bytes(limits.value_bytes);
  request.expected = reader.bytes(limits.value_bytes);
  reader.end();
  return request;
}

std::string encode(const Reply& reply) {
  return FieldWriter()
      .u8(static_cast<uint8_t>(reply.status))
      .u64(static_cast<uint64_t>(reply.number))
      .bytes(reply.value)
      .take();
}

Reply decode_reply(std::string_view message, const Limits& limits) {
  FieldReader reader(message);
  Reply reply;
  reply.status = static_cast<Status>(reader.u8());
  if (reply.status > Status::kRefused) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a reply of the store is of an unknown kind"});
  }
  reply.number = static_cast<int64_t>(reader.u64());
  reply.value = reader.bytes(limits.value_bytes);
  reader.end();
  return reply;
}

}  // namespace lockstep::store
