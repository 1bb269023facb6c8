#pragma once

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/dense.h"
#include "lockstep/shm/p2p_operation.h"

namespace lockstep {

/// Names of the ranks, for error messages: "rank 1 (host a, pid 7)".
using RankNames = std::shared_ptr<const std::vector<std::string>>;

/// Returns the error that `rank` reports if Gloo fails in `operation`.
CommError gloo_error(const RankNames& names, int rank,
                     const std::string& operation, const std::exception& error);

/// A send or receive of ProcessGroupGloo. As in c10d, only a wait detects that
/// it is done. But here several threads may wait for it, and more than once.
class GlooMessage : public c10d::Work {
 public:
  using Timeout = std::chrono::milliseconds;

  /// Starts the operation. Throws CommError if Gloo throws.
  GlooMessage(c10d::Backend& gloo, RankNames names,
              const shm::P2pOperation& operation, const at::Tensor& tensor,
              Timeout timeout);

  /// Waits for the operation. Without a `timeout`, uses that of the
  /// constructor.
  bool wait(Timeout timeout) override;
  int sourceRank() const override;
  /// Throws InvalidArgument, because nothing would complete the future.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::vector<at::Tensor> result() override { return outputs_; }

 private:
  void end(Timeout timeout);

  RankNames names_;
  std::string description_;
  bool is_receive_;
  std::vector<at::Tensor> outputs_;
  Result dense_;
  Timeout timeout_;
  std::mutex waiting_;  // Gloo's work can be waited for only once
  c10::intrusive_ptr<c10d::Work> gloo_work_;
};

}  // namespace lockstep
