#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep::transport {

enum class Operation : uint32_t {
  kNone,
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kShareMemory,
};

/// The call of a rank. The other ranks compare it with their own.
struct Call {
  Operation operation = Operation::kNone;
  int32_t root = -1;                 ///< -1 if the operation has no root
  std::array<char, 12> type{};       ///< type of the elements: "float32"
  std::array<char, 12> reduction{};  ///< "sum"; empty if nothing is reduced
  uint64_t elements = 0;             ///< 0 if ranks may differ
  /// Hash of the shape in debug mode, otherwise 0.
  uint64_t shape_hash = 0;

  bool operator==(const Call&) const = default;
  /// Returns "all_reduce (sum) of 4096 x float32", "broadcast from rank 0 of
  /// ..." and so on.
  std::string describe() const;
};
static_assert(std::is_trivially_copyable_v<Call>);

/// Throws InvalidArgument if the root that `rank` names is not one of the
/// ranks. Otherwise the memory of a rank that does not exist would be read.
void check_root(const Call& call, int rank, int ranks);

/// Returns the problem of an all_to_all in which a rank sends a number of bytes
/// that the receiver does not expect.
Problem sizes_differ(int sender, int receiver, size_t expected_bytes,
                     size_t sent_bytes);

/// The fix for ranks that do not understand each other.
inline constexpr const char* kUseOneBuild =
    "run the same build of Lockstep on every rank";

/// Returns `text`, cut to 12 characters.
std::array<char, 12> short_text(std::string_view text);

}  // namespace lockstep::transport
