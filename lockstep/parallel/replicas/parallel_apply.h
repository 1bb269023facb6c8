#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/device/worker.h"

namespace lockstep {

/// A replica threw. The message names the replica and its device; what it
/// threw is kept.
class ReplicaError : public Error {
 public:
  ReplicaError(const Problem& problem, std::exception_ptr cause)
      : Error("parallel", problem), cause_(std::move(cause)) {}
  const std::exception_ptr& cause() const { return cause_; }

 private:
  std::exception_ptr cause_;
};

/// Runs `task`; what it throws comes out as a ReplicaError naming the device.
void run_as_replica(size_t replica, const Device& device,
                    const std::function<void()>& task);

using Forward =
    std::function<c10::IValue(const std::vector<c10::IValue>& inputs)>;

/// Applies replicas[i] to inputs[i] on workers[i], all at once, with the
/// caller's grad mode. There may be fewer inputs than replicas. The first
/// exception, in the order of the replicas, comes out as a ReplicaError.
std::vector<c10::IValue> parallel_apply(
    const std::vector<Forward>& replicas,
    const std::vector<std::vector<c10::IValue>>& inputs,
    const std::vector<std::unique_ptr<Worker>>& workers);

}  // namespace lockstep
