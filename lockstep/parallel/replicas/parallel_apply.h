#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/device/worker.h"

namespace lockstep {

/// A replica threw an exception, the cause. The message names the replica and
/// its device, and has the text of the cause. The code is the code of the cause
/// if that is an Error of Lockstep, else kReplicaFailed. Thrown while the cause
/// is handled.
class ReplicaError : public Error, public std::nested_exception {
 public:
  explicit ReplicaError(const Problem& problem) : Error("parallel", problem) {}
  std::exception_ptr cause() const { return nested_ptr(); }
};

/// Runs `task`. Throws a ReplicaError that names the device for what it throws.
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
