#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/env.h"
#include "lockstep/transport/call.h"
#include "lockstep/transport/reduction.h"

namespace lockstep::transport {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;
using Milliseconds = std::chrono::milliseconds;

/// Returns whether calls are compared in every detail (LOCKSTEP_DEBUG=detail).
inline bool is_debug_detail() {
  static const bool is_detailed = env("LOCKSTEP_DEBUG") == "detail";
  return is_detailed;
}

/// Memory of a rank that this rank has mapped.
struct RankMemory {
  std::shared_ptr<const void> owner;  ///< keeps it mapped
  Bytes bytes;                        ///< starts at a page

  /// Returns the offset of `data` in this memory, or nothing if not all of it
  /// is there.
  std::optional<size_t> offset_of(ConstBytes data) const {
    // Unlike <=, it may compare addresses of different objects.
    const std::less_equal<> is_up_to;
    const bool is_inside =
        is_up_to(bytes.data(), data.data()) &&
        is_up_to(data.data() + data.size(), bytes.data() + bytes.size());
    if (bytes.empty() || !is_inside) return std::nullopt;
    return static_cast<size_t>(data.data() - bytes.data());
  }
};

/// Knows whether the ranks of a group are there. Any thread may ask.
class Peers {
 public:
  virtual ~Peers() = default;
  /// Returns how a rank ended, "rank 1 (host build7, pid 4711) ended", or
  /// nothing if it can still take part.
  virtual std::optional<std::string> end_of(int rank) const = 0;
  /// Returns what a rank does: "rank 1 (host build7, pid 4711) sleeps".
  virtual std::string state_of(int rank) const = 0;
};

/// Moves the bytes of collectives between the ranks of a group.
///
/// All ranks make the same calls in the same order, each from one thread at a
/// time. A call is announced with begin(), so that a rank that calls something
/// else is found, and then made with one of the functions after it. These work
/// like those of the same names in shm/collectives.h. They throw CommError for
/// ranks that die, stall or call something else.
class Transport : public Peers {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual const char* name() const = 0;  ///< "shm", "tcp"

  /// Throws CommError if the ranks can't continue together, and InvalidArgument
  /// for a root that is not a rank.
  virtual void begin(const Call& call, Milliseconds timeout) = 0;
  /// A reduction with combine_scaled() multiplies each rank's data by its
  /// factor.
  virtual void all_reduce(Bytes data, const Reduction& reduction) = 0;
  virtual void reduce(Bytes data, int root, const Reduction& reduction) = 0;
  virtual void broadcast(Bytes data, int root) = 0;
  virtual void all_gather(ConstBytes input, std::span<const Bytes> outputs) = 0;
  virtual void gather(ConstBytes input, std::span<const Bytes> outputs,
                      int root) = 0;
  virtual void scatter(Bytes output, std::span<const ConstBytes> inputs,
                       int root) = 0;
  virtual void reduce_scatter(Bytes output, std::span<const ConstBytes> inputs,
                              const Reduction& reduction) = 0;
  virtual void all_to_all(std::span<const Bytes> outputs,
                          std::span<const ConstBytes> inputs) = 0;
  virtual void barrier() = 0;

  virtual bool can_share() const { return false; }
  /// Allocates `bytes` of zeros for each rank, which all ranks map, and returns
  /// that memory by rank. all_reduce() does not copy data that is in memory of
  /// one result on every rank, for as long as that result exists. Calls begin()
  /// itself.
  virtual std::shared_ptr<const std::vector<RankMemory>> share(
      size_t bytes, Milliseconds timeout) = 0;

  virtual int64_t sent_bytes() const { return 0; }
  /// Makes the other ranks' waits fail with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace lockstep::transport
