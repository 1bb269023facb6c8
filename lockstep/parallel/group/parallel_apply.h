#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>

#include "lockstep/base/error.h"
#include "lockstep/device/worker.h"

namespace lockstep {

/// Thrown if a replica threw an exception, the cause. The message names the
/// replica and its device, and contains the text of the cause. The code is that
/// of the cause if it is a Lockstep Error, otherwise kReplicaFailed. Must be
/// thrown while the cause is being handled.
class ReplicaError : public Error, public std::nested_exception {
 public:
  explicit ReplicaError(const Problem& problem) : Error("parallel", problem) {}
  std::exception_ptr cause() const { return nested_ptr(); }
};

/// Rethrows the exception that is being handled as a ReplicaError that names
/// the device. Leaves a ReplicaError as it is.
[[noreturn]] void rethrow_of_replica(size_t replica, const Device& device);

using ReplicaForward =
    std::function<c10::IValue(const std::vector<c10::IValue>& inputs)>;

/// Applies replicas[i] to inputs[i] on workers[i], all at once, with the
/// caller's grad mode. There may be fewer inputs than replicas. The first
/// exception, in the order of the replicas, is rethrown as a ReplicaError.
std::vector<c10::IValue> parallel_apply(
    const std::vector<ReplicaForward>& replicas,
    const std::vector<std::vector<c10::IValue>>& inputs,
    const std::vector<std::unique_ptr<Worker>>& workers);

}  // namespace lockstep
