#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/shm/segment.h"

// What an agent of `lockstep run` and its workers tell each other, in memory
// of the agent that both map. Nothing of it has to be sent, so a worker that
// is stuck, or was killed, can still be read.
namespace lockstep::agent {

/// The variable that leads a worker to its line.
inline constexpr const char* kAgentVariable = "LOCKSTEP_AGENT";

/// What a rank is at.
enum class Phase : uint32_t {
  kStart,
  kData,
  kForward,
  kBackward,
  kAllReduce,
  kUpdate,
  kSnapshot,
  kCheckpoint,
  kEvaluate,
  kWait,  ///< for the agent, after another rank failed
  kEnd,
};
/// "start", "all-reduce", ...; "?" for what is none.
const char* name_of(Phase phase);

/// A worker's place in its job, from one start or restart to the next.
struct Place {
  int32_t attempt = 0;  ///< restarts before it
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  int32_t node_rank = 0;
};

/// Where the job's store is, and what lets a worker in, in its round alone.
/// Here and not in the environment, which other processes can read and what the
/// worker starts inherits.
struct StoreAccess {
  std::array<char, 256> host;
  int32_t port;  ///< 0: there is none
  std::array<uint8_t, 32> key;
};

/// One for each worker.
struct alignas(64) WorkerLine {
  // Written by the worker.
  std::atomic<uint64_t> steps;        ///< done
  std::atomic<uint64_t> first_steps;  ///< done when it began
  std::atomic<uint64_t> collectives;  ///< begun
  std::atomic<uint64_t> beat_ns;      ///< last sign of life, steady clock
  std::atomic<Phase> phase;
  /// If another rank is lost, it will wait for the next attempt.
  std::atomic<uint32_t> can_wait;
  /// 1 + the attempt that it gave up, and waits for the next one; 0: none.
  std::atomic<uint32_t> waits_after;
  std::array<char, 400> reason;  ///< why it did

  // Written by the agent.
  alignas(64) std::atomic<uint32_t> attempt;  ///< 1 + place.attempt; a futex
  Place place;
  StoreAccess store;
};

/// Memory for snapshots (SnapshotMemory): a worker makes it, the agent takes
/// hold of it, so that it outlives the worker.
struct SnapshotOffer {
  enum class State : uint32_t { kNone, kOffered, kHeld };
  std::atomic<State> state;  ///< a futex
  std::array<shm::SegmentAddress, 2> slots;
};

struct PageHeader {
  uint64_t magic;
  uint32_t workers;
  /// Written at the beginning of each attempt, while workers read.
  std::atomic<uint32_t>
      patience_s;  ///< how long a worker waits for the next attempt
  /// A rank that lost another is to wait for the next attempt: there may be
  /// one.
  std::atomic<uint32_t> may_wait;
  /// 1 + the last attempt that is over.
  std::atomic<uint32_t> over;
  /// 1 + the last attempt whose workers are to wait after the step that they
  /// are in: nodes come or go.
  std::atomic<uint32_t> regroup;
  /// There will be no other attempt.
  std::atomic<uint32_t> is_closed;
  SnapshotOffer snapshots;
};

/// The page itself. A value: copies are the same memory.
class Page {
 public:
  /// Of an agent. Throws CommError.
  static Page create(int workers);
  /// What `text`, of the variable, leads to. Throws CommError.
  static Page open(const std::string& text);

  PageHeader& header() const;
  WorkerLine& line(int local_rank) const;
  int workers() const { return static_cast<int>(header().workers); }
  /// For the worker with this local rank.
  std::string variable(int local_rank) const;
  /// The local rank that the variable named.
  int own_line() const { return own_line_; }

 private:
  explicit Page(std::shared_ptr<const shm::Segment> segment, int own_line)
      : segment_(std::move(segment)), own_line_(own_line) {}

  std::shared_ptr<const shm::Segment> segment_;
  int own_line_ = 0;
};

}  // namespace lockstep::agent
