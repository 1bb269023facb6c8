#pragma once

#include <string>

#include "lockstep/comm/transport/transport.h"

namespace lockstep {

/// Transport of a ProcessGroup of one rank. Copies the inputs of each call to
/// its outputs, in the caller's thread. Tensors may be on any device.
class SingleRank : public Transport {
 public:
  SingleRank() : Transport("none", CallFactory(0, 1, std::nullopt), {}) {}

  void run(const CollectiveCall& call, Timeout timeout) override;
  WorkPtr begin(CollectiveCall call, Timeout timeout) override;
  // These throw InvalidArgument, because there is no other rank.
  WorkPtr send(const at::Tensor& tensor, int to, int tag) override;
  WorkPtr recv(const at::Tensor& tensor, int from, int tag) override;
  WorkPtr recv_any(const at::Tensor& tensor, int tag) override;
  void monitored_barrier(Timeout, bool) override {}
  bool can_share_memory() const override { return true; }
  void abort(const std::string&) noexcept override {}
};

}  // namespace lockstep
