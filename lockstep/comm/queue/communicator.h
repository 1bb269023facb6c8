#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "lockstep/comm/collectives/collectives.h"
#include "lockstep/comm/collectives/shared_memory.h"

namespace lockstep {

/// A collective that a rank called, with arguments that were already checked.
/// Keeps the tensors alive.
struct CollectiveCall {
  using Task = std::function<void(Collectives&, std::chrono::milliseconds)>;

  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::vector<at::Tensor> outputs{};  ///< tensors that it writes to
  Task perform;                       ///< runs the call; gets the timeout
  /// Set if this is an all-reduce of the dense tensor outputs[0] whose message
  /// can be joined with others.
  std::optional<c10d::ReduceOp> reduction = std::nullopt;
};

/// Runs the calls of a World, in the order in which they are made.
class Communicator {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual ~Communicator() = default;

  virtual std::string name() const = 0;  ///< name of the backend: "shm"
  /// Returns when `call` and all calls begun before it are done. Throws the
  /// error of `call` if it failed.
  virtual void run(const CollectiveCall& call) = 0;
  /// Begins `call` and returns at once. The result is null if `call` is already
  /// done.
  virtual WorkPtr begin(CollectiveCall call) = 0;

  // Messages from rank to rank. They do not wait for calls begun before. Their
  // arguments are checked here.
  virtual WorkPtr send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual WorkPtr recv(const at::Tensor& tensor, int from, int tag) = 0;
  virtual WorkPtr recv_any(const at::Tensor& tensor, int tag) = 0;

  /// Value for World::sent_bytes().
  virtual int64_t sent_bytes() const { return 0; }

  /// Allocates memory of each rank, which all ranks map (World::shared_memory).
  /// Collective.
  virtual SharedMemory share(size_t bytes) = 0;
  /// Makes the other ranks' waits fail with `reason`, if the backend can.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace lockstep
