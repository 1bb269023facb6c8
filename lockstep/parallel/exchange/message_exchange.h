#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/overlapped_sum.h"
#include "lockstep/parallel/exchange/rank_exchange.h"

namespace lockstep {

/// Exchange between ranks that share no memory, or whose gradients are summed
/// by a hook. Each rank has its own parameters and optimizer state and updates
/// all of them. With ZeRO, each rank has a part of the optimizer state, updates
/// that part of the parameters, and sends the result to the other ranks.
///
/// OverlappedSum sums the gradients if that gives the same bits as the tree. It
/// does so during the backward, from the second backward on, if each gradient
/// arrived exactly once in the first. If the ranks' shards are not nodes of the
/// tree, or a small batch leaves some ranks without a shard, each rank sums
/// some bytes of all gradients: all-to-all, sum, all-gather.
class MessageExchange : public RankExchange {
 public:
  MessageExchange(const World& world, const ModuleHandle& module,
                  std::vector<torch::Tensor> parameters, int64_t shards,
                  int64_t most_partials, int64_t workers, ZeroStage zero,
                  const CommHook& hook);

  void begin_step(bool is_driven) override {
    is_driven_ = is_driven;
    is_watched_ = false;
  }
  void load_buffers() override {}
  void forget_buffers() override {}
  OverlappedSum* overlapped_sum(int64_t chunks) override;
  Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                   StepTotals& totals) override;
  std::vector<size_t> own_blocks(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions) const override;
  void share(std::vector<double>& values) override;
  std::vector<torch::Tensor> whole_sums(
      std::vector<torch::Tensor> sums) override;
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;
  torch::Tensor whole_state(const torch::Tensor& state) override;

 private:
  /// A partial sum of a rank: its shards, and which parameters have a gradient.
  struct Head {
    int64_t first, last;
    std::vector<bool> has_gradient;
  };
  /// The data that each rank sends to the others after its backward.
  struct Heads {
    std::vector<std::vector<Head>> of_rank;  // [rank][partial]
    bool is_right = false;  // whether overlapped_ is right on all ranks
  };

  Heads exchange_heads(const std::vector<PartialSum>& own_partials,
                       StepTotals& totals);
  /// Returns the range of the flat gradient that rank `rank` sums.
  ShardRange bytes_of_rank(int rank) const;
  torch::Tensor flatten(const PartialSum& partial) const;
  /// Returns this rank's bytes of every partial sum of every rank: [rank] is
  /// (partials, bytes).
  std::vector<torch::Tensor> scatter_partials(
      const std::vector<PartialSum>& own_partials, const Heads& heads);
  /// Returns the sum of `partials` along the tree of `chunks` shards.
  torch::Tensor sum(const std::vector<torch::Tensor>& partials,
                    const Heads& heads, int64_t chunks) const;

  /// Throws ParallelError if a gradient changed after it was sent.
  void check_sent(const Heads& heads) const;
  /// Returns the sums made by overlapped_.
  Reduction overlapped(const Heads& heads, int64_t chunks);
  /// Returns the sums, exchanged by all-to-all.
  Reduction exchange_partials(std::vector<PartialSum> own_partials,
                              const Heads& heads, int64_t chunks);
  bool cuts_state() const { return zero_ != ZeroStage::kNone; }
  /// Returns whether this step's gradients were sent during its backward.
  bool was_sent() const { return is_watched_ && overlapped_->is_early(); }
  bool has_gradient(const Heads& heads, size_t p) const;

  World world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  int64_t shards_;
  int64_t most_partials_;  // of one rank
  std::vector<optim::Block> blocks_;
  torch::TensorOptions bytes_;  // of messages; device of the parameters
  std::vector<int64_t> at_;  // offsets of parameters in the flat gradient; size
  bool has_hook_;
  bool has_one_worker_;
  ZeroStage zero_;
  Partition partition_;
  std::unique_ptr<OverlappedSum> overlapped_;  // null if the ranks can't use it
  bool repeats_gradients_ = false;  // such a module is not watched again
  bool is_watched_ = false;  // overlapped_ watches the backward of this step
  bool is_order_known_ = false;  // all ranks know the order of arrivals
  bool is_driven_ = false;       // the step has an optimizer
  bool has_pieces_ = false;  // the sums of this step are only this rank's part
};

}  // namespace lockstep
