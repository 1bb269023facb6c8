#pragma once

#include <string>

#include "lockstep/comm/queue/communicator.h"

namespace lockstep {

/// Runs the calls of a World of one rank immediately, in the caller's thread.
class SingleRank : public Communicator {
 public:
  std::string name() const override { return "none"; }
  void run(const CollectiveCall& call) override;
  WorkPtr begin(CollectiveCall call) override;
  // These throw InvalidArgument, because there is no other rank.
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  SharedMemory share(size_t bytes) override;
  void abort(const std::string&) noexcept override {}
};

}  // namespace lockstep
