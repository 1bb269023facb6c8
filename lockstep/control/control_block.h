#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/shm/segment.h"

// What an agent of `lockstep run` and its workers tell each other. It lies in
// memory of the agent that both sides map. Nothing of it has to be sent, so the
// agent can read the slot of a worker that is stuck or was killed.
namespace lockstep::control {

/// The environment variable that leads a worker to its slot.
inline constexpr const char* kAgentVariable = "LOCKSTEP_AGENT";

/// What a rank is doing.
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
/// "start", "all-reduce", ...; "?" for a value that is not a phase.
const char* name_of(Phase phase);

/// Which rank a worker is, from one start or restart of the job to the next.
struct RankAssignment {
  int32_t attempt = 0;  ///< how often the job was restarted before
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  int32_t node_rank = 0;
};

/// Where the job's store is, and the key that lets this worker in, in this
/// round alone. It is here and not in the environment, because other processes
/// can read the environment and the worker's own children inherit it.
struct StoreAccess {
  std::array<char, 256> host;
  int32_t port;  ///< 0: there is no store
  std::array<uint8_t, 32> key;
};

/// What one worker and the agent tell each other.
struct alignas(64) WorkerSlot {
  // The worker writes these.
  std::atomic<uint64_t> steps;         ///< that the run has done
  std::atomic<uint64_t> first_steps;   ///< that were done when the worker began
  std::atomic<uint64_t> collectives;   ///< that the worker has begun
  std::atomic<uint64_t> heartbeat_ns;  ///< last sign of life, steady clock
  std::atomic<Phase> phase;
  /// 1: if another rank is lost, the worker will wait for the next attempt.
  std::atomic<uint32_t> can_wait;
  /// 1 + the attempt that the worker gave up to wait for the next one; 0: it
  /// does not wait.
  std::atomic<uint32_t> waits_after;
  std::array<char, 400> reason;  ///< why the worker gave that attempt up

  // The agent writes these.
  /// 1 + assignment.attempt. A futex: the worker sleeps on it.
  alignas(64) std::atomic<uint32_t> attempt;
  RankAssignment assignment;
  StoreAccess store;
};

/// Memory for snapshots (SnapshotMemory). A worker makes it and the agent takes
/// hold of it, so that it outlives the worker.
struct SnapshotOffer {
  enum class State : uint32_t { kNone, kOffered, kHeld };
  std::atomic<State> state;  ///< a futex
  std::array<shm::SegmentAddress, 2> slots;
};

/// What the agent tells all workers. Slots follow it in memory.
struct ControlHeader {
  uint64_t magic;
  uint32_t workers;
  /// How long a worker waits for the next attempt, at most. The agent writes
  /// it at the beginning of each attempt, while workers read.
  std::atomic<uint32_t> wait_limit_s;
  /// 1: a rank that lost another should wait, as there may be a next attempt.
  std::atomic<uint32_t> may_wait;
  /// 1 + the last attempt that is over.
  std::atomic<uint32_t> over;
  /// 1 + the last attempt whose workers should wait after their present step,
  /// because nodes come or go.
  std::atomic<uint32_t> regroup;
  /// 1: there will be no other attempt.
  std::atomic<uint32_t> is_closed;
  SnapshotOffer snapshots;
};

/// The memory that an agent and its workers share: a header and a slot for each
/// worker. Copies of the object share that memory.
class ControlBlock {
 public:
  /// For an agent. Throws CommError.
  static ControlBlock create(int workers);
  /// For a worker: opens what `text`, the value of the variable, leads to.
  /// Throws CommError.
  static ControlBlock open(const std::string& text);

  ControlHeader& header() const;
  WorkerSlot& slot(int local_rank) const;
  int workers() const { return static_cast<int>(header().workers); }
  /// The variable's value for the worker with this local rank.
  std::string variable(int local_rank) const;
  /// The local rank in the variable's value.
  int own_slot() const { return own_slot_; }

 private:
  explicit ControlBlock(std::shared_ptr<const shm::Segment> segment,
                        int own_slot)
      : segment_(std::move(segment)), own_slot_(own_slot) {}

  std::shared_ptr<const shm::Segment> segment_;
  int own_slot_ = 0;
};

}  // namespace lockstep::control
