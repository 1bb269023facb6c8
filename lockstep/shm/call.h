#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "lockstep/base/error.h"

namespace lockstep::shm {

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

/// What a rank calls, for the others to compare with what they call.
struct Call {
  Operation operation = Operation::kNone;
  int32_t root = -1;                 ///< -1: the operation has none
  std::array<char, 12> type{};       ///< of the elements: "float32"
  std::array<char, 12> reduction{};  ///< "sum"; empty: none
  uint64_t elements = 0;             ///< 0 where ranks may differ
  /// In debug mode the shape's, else 0.
  uint64_t shape_hash = 0;

  bool operator==(const Call&) const = default;
  /// "all_reduce (sum) of 4096 x float32", "broadcast from rank 0 of ...".
  std::string describe() const;
};
static_assert(std::is_trivially_copyable_v<Call>);

/// Throws InvalidArgument if the root that `rank` names is not one of the
/// ranks: the root's memory would be read.
void check_root(const Call& call, int rank, int ranks);

/// An all_to_all in which a rank sends another number of bytes than the
/// receiver expects.
Problem sizes_differ(int sender, int receiver, size_t expected_bytes,
                     size_t sent_bytes);

/// What to do where ranks do not understand each other.
inline constexpr const char* kUseOneBuild =
    "run the same build of Lockstep on every rank";

/// `text`, cut to what fits.
std::array<char, 12> short_text(std::string_view text);

}  // namespace lockstep::shm
