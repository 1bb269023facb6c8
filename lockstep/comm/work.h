#pragma once

#include <chrono>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/types.h>

namespace lockstep {

/// A call of a ProcessGroup that was begun and may not be done yet. Returned by
/// its functions. Copies refer to the same call. The tensors of the call must
/// not be read or changed until it is done. Destroying the Work does not cancel
/// the call.
///
/// Over nccl, "done" has the same meaning as in c10d: wait() makes the current
/// CUDA stream wait, not the host.
class Work {
 public:
  using Tensors = std::vector<torch::Tensor>;

  /// Makes the work of a call that is done and has no result.
  Work() = default;
  /// `work` is null if the call is done.
  explicit Work(c10::intrusive_ptr<c10d::Work> work, Tensors result = {})
      : work_(std::move(work)), result_(std::move(result)) {}

  /// Returns when the call is done. If the call failed, rethrows the error:
  /// CommError for a rank that died, stalled or called something else.
  ///
  /// With a `timeout` above 0, also throws CommError when that time is over.
  /// The call itself then continues, and may be waited for again.
  void wait(std::chrono::milliseconds timeout = kNoTimeout) const;

  /// Returns whether the call is done, with or without an error.
  bool is_completed() const;

  /// The tensors that the call writes to: one for each rank for all_gather, and
  /// those of all its calls in order for a coalesced group. They may be read
  /// after wait() has returned.
  const Tensors& result() const& { return result_; }
  Tensors result() && { return std::move(result_); }

  /// Returns c10d's future of the result, a list of tensors, for callbacks
  /// (then()). docs/collectives.md says what a callback may do. Throws
  /// InvalidArgument for a message.
  c10::intrusive_ptr<c10::ivalue::Future> future() const;

  /// Returns the rank that sent, after irecv_any() is done.
  int source_rank() const;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Tensors result_;
};

}  // namespace lockstep
