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

/// A collective that a rank called, with arguments that were checked: what is
/// done when its turn comes. Keeps the tensors.
struct CollectiveCall {
  using Task = std::function<void(Collectives&, std::chrono::milliseconds)>;

  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::vector<at::Tensor> outputs{};  ///< the tensors that it writes to
  Task perform;                       ///< gets the timeout
  /// Set if this is an all-reduce of the dense tensor outputs[0] whose message
  /// can be joined with others.
  std::optional<c10d::ReduceOp> reduction = std::nullopt;
};

/// Does the calls of a World, in the order in which they are made.
class Communicator {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  virtual ~Communicator() = default;

  virtual std::string name() const = 0;  ///< of the backend: "shm"
  /// Returns when `call`, and all that was begun before it, is done. Throws the
  /// error with which `call` ended.
  virtual void run(const CollectiveCall& call) = 0;
  /// Returns at once. The result is null if `call` is done already.
  virtual WorkPtr begin(CollectiveCall call) = 0;

  // Messages from rank to rank. They do not wait for what was begun before.
  // Their arguments are checked here.
  virtual WorkPtr send(const at::Tensor& tensor, int to, int tag) = 0;
  virtual WorkPtr recv(const at::Tensor& tensor, int from, int tag) = 0;
  virtual WorkPtr recv_any(const at::Tensor& tensor, int tag) = 0;

  /// Of World::sent_bytes().
  virtual int64_t sent_bytes() const { return 0; }

  /// Allocates memory of each rank, which all ranks map
  /// (World::shared_memory). A collective.
  virtual SharedMemory share(size_t bytes) = 0;
  /// Ends the waits of the other ranks with `reason`, if the backend can.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace lockstep
