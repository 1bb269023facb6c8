#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/gloo_mail.h"
#include "lockstep/shm/call.h"
#include "lockstep/shm/collectives.h"

namespace lockstep {

/// Over c10d's ProcessGroupGloo, between hosts. Gloo moves bytes; sums are done
/// here, as all-to-all, ordered sum and all-gather, which moves 2(N-1)/N of
/// the data, as a ring does, and keeps the order.
class GlooCollectives : public Collectives {
 public:
  /// `gloo` and who the ranks are, for messages: "rank 1 (host a, pid 7)".
  GlooCollectives(c10::intrusive_ptr<c10d::Backend> gloo,
                  std::vector<std::string> rank_names);

  std::string name() const override { return "gloo"; }
  void all_reduce(at::Tensor& tensor, const c10d::ReduceOp& op,
                  Timeout timeout) override;
  void reduce(at::Tensor& tensor, int root, const c10d::ReduceOp& op,
              Timeout timeout) override;
  void broadcast(at::Tensor& tensor, int root, Timeout timeout) override;
  void all_gather(Tensors& outputs, const at::Tensor& input,
                  Timeout timeout) override;
  void gather(Tensors& outputs, const at::Tensor& input, int root,
              Timeout timeout) override;
  void scatter(at::Tensor& output, const Tensors& inputs, int root,
               Timeout timeout) override;
  void reduce_scatter(at::Tensor& output, const Tensors& inputs,
                      const c10d::ReduceOp& op, Timeout timeout) override;
  void all_to_all(Tensors& outputs, const Tensors& inputs,
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
  void fail(const std::string& reason) noexcept override;

 private:
  /// Does `task`, and says in what rank and operation Gloo failed. In debug
  /// detail it first compares `call` with those of the other ranks.
  void run(const shm::Call& call, Timeout timeout,
           const std::function<void()>& task);
  Work start_mail(shm::MailOperation::Kind kind, const at::Tensor& tensor,
                  int peer, int tag, Timeout timeout);
  void check_calls(const shm::Call& call, Timeout timeout);
  at::Tensor gathered(const at::Tensor& bytes, Timeout timeout);
  void reduce_bytes(const at::Tensor& input, const at::Tensor& output,
                    const shm::Reduction& reduction, Timeout timeout);
  void exchange(at::Tensor& output, at::Tensor& input,
                std::vector<int64_t> output_splits,
                std::vector<int64_t> input_splits, Timeout timeout);

  c10::intrusive_ptr<c10d::Backend> gloo_;
  int rank_;
  int size_;
  RankNames rank_names_;
};

}  // namespace lockstep
