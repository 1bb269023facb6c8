#pragma once

#include <chrono>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/types.h>

namespace lockstep {

/// A call of a World that was begun and may not be done yet, as the
/// asynchronous forms return it. A value: copies are the same call. Nobody else
/// may read or change the tensors of the call until it is done. Dropping the
/// Work does not cancel the call.
///
/// Over nccl "done" means what it means in c10d: wait() makes the current CUDA
/// stream wait, and not the host.
class Work {
 public:
  using Tensors = std::vector<torch::Tensor>;

  /// The work of a call that is done and has no result.
  Work() = default;
  /// `work` is null if the call is done.
  explicit Work(c10::intrusive_ptr<c10d::Work> work, Tensors result = {})
      : work_(std::move(work)), result_(std::move(result)) {}

  /// Returns when the call is done. If the call failed, it rethrows the error:
  /// CommError for a rank that died, stalled or called something else.
  ///
  /// With a `timeout` above 0, it also throws CommError when that time is over.
  /// The call itself goes on then, and may be waited for again. Only a message
  /// over gloo fails at the timeout.
  void wait(std::chrono::milliseconds timeout = kNoTimeout) const;

  /// Whether the call is done, with or without an error. For a message over
  /// gloo, only wait() finds that out.
  bool is_completed() const;

  /// The tensors that the call writes to: for all_gather one for each rank, for
  /// a coalesced group those of all its calls in their order. They may be read
  /// when wait() has returned.
  const Tensors& result() const { return result_; }

  /// c10d's future of the result, a list of tensors, for callbacks (then()).
  /// What a callback may do is in docs/collectives.md. A message over gloo has
  /// no future: this then throws InvalidArgument.
  c10::intrusive_ptr<c10::ivalue::Future> future() const;

  /// For irecv_any(), when it is done: the rank that sent.
  int source_rank() const;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Tensors result_;
};

}  // namespace lockstep
