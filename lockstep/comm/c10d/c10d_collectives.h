#pragma once

#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/collectives/collectives.h"

namespace lockstep {

/// Collectives of a c10d backend that runs its calls in order, such as
/// ProcessGroupNCCL. The tensors are on the backend's devices, and the backend
/// determines the order in which a sum adds the ranks.
class C10dCollectives : public Collectives {
 public:
  /// With kSync, a call returns when c10d's wait() returns. With kAsync, it
  /// returns at once, and last_work() is done when all calls are done.
  enum class Mode { kSync, kAsync };

  C10dCollectives(c10d::Backend& backend, Mode mode)
      : backend_(backend), mode_(mode) {}

  /// Returns the work of the last call, or null if there was none. Calls
  /// complete in order, so all calls are done when it is done.
  Work last_work() const { return last_work_; }

  std::string name() const override { return backend_.getBackendName(); }
  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                  Timeout timeout) override;
  void all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                            Timeout timeout) override;
  /// Large, because c10d can send several tensors at once.
  size_t small_message_bytes() const override { return 4 << 20; }
  void reduce(const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
              Timeout timeout) override;
  void broadcast(const at::Tensor& tensor, int root, Timeout timeout) override;
  void all_gather(const Tensors& outputs, const at::Tensor& input,
                  Timeout timeout) override;
  void gather(const Tensors& outputs, const at::Tensor& input, int root,
              Timeout timeout) override;
  void scatter(const at::Tensor& output, const Tensors& inputs, int root,
               Timeout timeout) override;
  void reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                      const c10d::ReduceOp& op, Timeout timeout) override;
  void all_to_all(const Tensors& outputs, const Tensors& inputs,
                  Timeout timeout) override;
  void barrier(Timeout timeout) override;
  void monitored_barrier(Timeout timeout, bool wait_all_ranks) override;
  Work send(const at::Tensor& tensor, int to, int tag,
            Timeout timeout) override;
  Work recv(const at::Tensor& tensor, int from, int tag,
            Timeout timeout) override;
  Work recv_any(const at::Tensor& tensor, int tag, Timeout timeout) override;
  bool can_share_memory() const override { return false; }
  SharedMemory share(size_t bytes, Timeout timeout) override;
  void abort(const std::string&) noexcept override {}

 private:
  template <typename Options>
  Options options_of(Timeout timeout) const {
    Options options;
    options.timeout = timeout;
    options.asyncOp = mode_ == Mode::kAsync;
    return options;
  }
  void keep(Work work);

  c10d::Backend& backend_;
  Mode mode_;
  Work last_work_;
};

}  // namespace lockstep
