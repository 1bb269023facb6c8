#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/shm/segment.h"

// The data that an agent of `lockstep run` and its workers share. It is in
// memory of the agent that both sides map. Nothing has to be sent, so the agent
// can read the slot of a worker that is stuck or was killed.
namespace lockstep::control {

/// The environment variable with which a worker finds its slot.
inline constexpr const char* kAgentVariable = "LOCKSTEP_AGENT";

/// The current activity of a rank.
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
  kWait,  ///< waiting for the agent after another rank failed
  kEnd,
};
/// Returns "start", "all-reduce" and so on, or "?" for a value that is not a
/// phase.
const char* name_of(Phase phase);

/// The ranks of a worker, valid until the next restart of the job.
struct RankAssignment {
  int32_t attempt = 0;  ///< number of restarts of the job so far
  int32_t rank = 0;
  int32_t world_size = 1;
  int32_t local_rank = 0;
  int32_t local_world_size = 1;
  int32_t node_rank = 0;
};

/// The address of the job's store, and the key with which this worker is
/// admitted in this round only. It is not passed in the environment, because
/// other processes can read the environment and the worker's children inherit
/// it.
struct StoreAccess {
  std::array<char, 256> host;
  int32_t port;  ///< 0: there is no store
  std::array<uint8_t, 32> key;
  std::array<uint8_t, 16> incarnation;  ///< of the store
  uint32_t keep_alive_ms;  ///< time for which agents try to reach the store
};

/// The data that one worker and the agent share.
struct alignas(64) WorkerSlot {
  // The worker writes these.
  std::atomic<uint64_t> steps;         ///< steps done by the run
  std::atomic<uint64_t> first_steps;   ///< steps done when the worker began
  std::atomic<uint64_t> collectives;   ///< collectives begun by the worker
  std::atomic<uint64_t> heartbeat_ns;  ///< last sign of life, steady clock
  std::atomic<Phase> phase;
  /// 1 if the worker will wait for the next attempt when another rank is lost.
  std::atomic<uint32_t> can_wait;
  /// 1 + the attempt that the worker gave up to wait for the next one, or 0 if
  /// it does not wait.
  std::atomic<uint32_t> waits_after;
  std::array<char, 400> reason;  ///< why the worker gave that attempt up

  // The agent writes these.
  /// 1 + assignment.attempt. A futex on which the worker sleeps.
  alignas(64) std::atomic<uint32_t> attempt;
  RankAssignment assignment;
  StoreAccess store;
};

/// Memory for snapshots (SnapshotMemory). A worker creates it and the agent
/// opens it, so that it outlives the worker.
struct SnapshotOffer {
  enum class State : uint32_t { kNone, kOffered, kHeld };
  std::atomic<State> state;  ///< a futex
  std::array<shm::SegmentAddress, 2> slots;
};

/// The data that the agent passes to all workers. Slots follow it in memory.
struct ControlHeader {
  uint64_t magic;
  uint32_t workers;
  /// Longest time that a worker waits for the next attempt. The agent writes it
  /// at the beginning of each attempt, while workers read it.
  std::atomic<uint32_t> wait_limit_s;
  /// 1 if a rank should wait when another is lost, as there may be another
  /// attempt.
  std::atomic<uint32_t> may_wait;
  /// 1 + the last attempt that is over.
  std::atomic<uint32_t> over;
  /// 1 + the last attempt in which workers should wait after their current
  /// step, because the set of nodes changes.
  std::atomic<uint32_t> regroup;
  /// 1 if there will be no other attempt.
  std::atomic<uint32_t> is_closed;
  SnapshotOffer snapshots;
};

/// The memory that an agent and its workers share: a header and a slot for each
/// worker. Copies of the object share that memory.
class ControlBlock {
 public:
  /// Creates the memory of an agent. Throws CommError.
  static ControlBlock create(int workers);
  /// Opens the memory of the agent in a worker. `text` is the value of the
  /// variable. Throws CommError.
  static ControlBlock open(const std::string& text);

  ControlHeader& header() const;
  WorkerSlot& slot(int local_rank) const;
  int workers() const { return static_cast<int>(header().workers); }
  /// Returns the variable's value for the worker with this local rank.
  std::string variable(int local_rank) const;
  /// Returns the local rank from the variable's value.
  int own_slot() const { return own_slot_; }

 private:
  explicit ControlBlock(std::shared_ptr<const shm::Segment> segment,
                        int own_slot)
      : segment_(std::move(segment)), own_slot_(own_slot) {}

  std::shared_ptr<const shm::Segment> segment_;
  int own_slot_ = 0;
};

}  // namespace lockstep::control
