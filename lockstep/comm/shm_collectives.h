#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lockstep/comm/callback_threads.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/shm/group.h"
#include "lockstep/shm/mailbox.h"

namespace lockstep {

/// Through the shared memory of one host (shm/).
class ShmCollectives : public Collectives {
 public:
  /// Meets the other ranks in `store`, and waits for them.
  ShmCollectives(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                 int size, Timeout timeout);

  std::string name() const override { return "shm"; }
  /// Of tensors that lie at the same place of a SharedMemory on every rank
  /// nothing is copied.
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
  bool can_share_memory() const override { return true; }
  SharedMemory share(size_t bytes, Timeout timeout) override;
  void fail(const std::string& reason) noexcept override {
    group_.fail(reason);
    mailbox_.fail(reason);
  }

 private:
  /// Where `tensor` lies in shared memory; 0 if it does not.
  uint64_t place_of(const at::Tensor& tensor) const;
  /// The same place of each rank.
  std::vector<std::span<std::byte>> at_place(uint64_t place,
                                             size_t bytes) const;
  /// Whether the ranks' tensors lie at one place of shared memory.
  bool agree_on(uint64_t place);

  int rank_;
  int size_;
  CallbackThreads callback_threads_;  // before the mailbox, which uses it
  shm::Mailbox mailbox_;
  shm::Group group_;  // after it: its ranks wait until all have a mailbox
  // Those that share() made and somebody has, by the number of the call, which
  // is the same on every rank.
  std::map<uint64_t, std::weak_ptr<const SharedMemory::Impl>> shared_;
  uint64_t shares_ = 0;  // calls
  std::atomic<uint32_t> monitored_barriers_ = 0;
};

}  // namespace lockstep
