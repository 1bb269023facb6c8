#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/overlapped_sum.h"
#include "lockstep/parallel/exchange/rank_exchange.h"

namespace lockstep {

/// Of ranks that share no memory, or whose gradients a hook sums. Each has
/// parameters and optimizer state of its own and updates all of them; or, with
/// ZeRO, a part of both, and gives the others the parameters that it updated.
///
/// Gradients are summed by OverlappedSum where that gives the bits of the tree:
/// during the backward, from the second on, if each came once in the first.
/// Where the ranks' shards are no nodes of the tree, and of a small batch, of
/// which some ranks have no shard, each rank sums some bytes of all gradients:
/// all-to-all, sum, all-gather.
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
  /// A partial sum of a rank: its shards, and which parameters have one.
  struct Head {
    int64_t first, last;
    std::vector<bool> has_gradient;
  };
  /// What each rank tells the others after its backward.
  struct Heads {
    std::vector<std::vector<Head>> of_rank;  // [rank][partial]
    bool is_right = false;  // what overlapped_ saw, on all ranks
  };

  Heads exchange_heads(const std::vector<PartialSum>& own_partials,
                       StepTotals& totals);
  /// Rank `rank` sums these bytes of the flat gradient.
  ShardRange bytes_of_rank(int rank) const;
  torch::Tensor flatten(const PartialSum& partial) const;
  /// This rank's bytes of every partial sum of every rank: [rank] is
  /// (partials, bytes).
  std::vector<torch::Tensor> scatter_partials(
      const std::vector<PartialSum>& own_partials, const Heads& heads);
  /// Their sum along the tree of `chunks` shards.
  torch::Tensor sum(const std::vector<torch::Tensor>& partials,
                    const Heads& heads, int64_t chunks) const;

  /// Throws ParallelError if a gradient changed after it was sent.
  void check_sent(const Heads& heads) const;
  /// The sums that overlapped_ made.
  Reduction overlapped(const Heads& heads, int64_t chunks);
  /// The sums by all-to-all.
  Reduction exchange_partials(std::vector<PartialSum> own_partials,
                              const Heads& heads, int64_t chunks);
  bool cuts_state() const { return zero_ != ZeroStage::kNone; }
  /// Whether this step's gradients were sent during its backward.
  bool was_sent() const { return is_watched_ && overlapped_->is_early(); }
  bool has_gradient(const Heads& heads, size_t p) const;

  World world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  int64_t shards_;
  int64_t most_partials_;  // of a rank
  std::vector<optim::Block> blocks_;
  torch::TensorOptions bytes_;  // of messages: where the parameters are
  std::vector<int64_t> at_;  // of each parameter in the flat gradient; the end
  bool has_hook_;
  bool has_one_worker_;
  ZeroStage zero_;
  Partition partition_;
  std::unique_ptr<OverlappedSum> overlapped_;  // if the ranks can use it
  bool repeats_gradients_ = false;  // the module, so it is not watched again
  bool is_watched_ = false;         // by overlapped_, this step's backward
  bool is_order_known_ = false;     // of the gradients' coming, to all ranks
  bool is_driven_ = false;          // the step has an optimizer
  bool has_pieces_ = false;  // this step's sums are each rank's part alone
};

}  // namespace lockstep
