#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::store {

/// The operations of the store. Clients can only read and write bytes.
enum class Operation : uint8_t {
  kSet = 1,         ///< keys[0] = value
  kGet = 2,         ///< the value of keys[0]; waits until it is set
  kAdd = 3,         ///< keys[0] += number
  kCompareSet = 4,  ///< keys[0] = value if it is `expected`, or missing and ""
  kCheck = 5,       ///< whether all keys are set
  kErase = 6,       ///< erases keys[0]; returns whether it was set
  kWait = 7,        ///< waits until all keys are set
  kCount = 8,       ///< the number of keys
  kBeginRound = 9,  ///< agents: `number` is the round, `value` its world size
  kSetLastWill = 10,  ///< agents: keys[0] = value when the process is gone
};

struct Request {
  Operation operation = Operation::kGet;
  /// Number of the request on its channel. A request that is repeated keeps its
  /// number.
  uint64_t id = 0;
  std::vector<std::string> keys;
  std::string value;
  std::string expected;
  int64_t number = 0;
  uint32_t wait_ms = 0;  ///< longest wait of kGet and kWait
};

enum class Status : uint8_t {
  kDone = 0,
  kTimeout = 1,  ///< a key was not set in time
  kRefused = 2,  ///< `value` is the reason
};

struct Reply {
  Status status = Status::kDone;
  std::string value;
  int64_t number = 0;
};

/// Limits on what the server stores and reads.
struct Limits {
  size_t key_bytes = 8 << 10;
  size_t value_bytes = 8 << 20;
  size_t keys_a_request = 4096;
  size_t keys = 1 << 18;
  /// Limit on the keys and values of workers. Agents have another table with
  /// the same limit.
  size_t total_bytes = 256 << 20;

  /// Returns the size of the longest message.
  size_t message_bytes() const;
};

std::string encode(const Request& request);
/// Decodes a request. Throws CommError if it is malformed or exceeds `limits`.
Request decode_request(std::string_view message, const Limits& limits);

std::string encode(const Reply& reply);
Reply decode_reply(std::string_view message, const Limits& limits);

}  // namespace lockstep::store
