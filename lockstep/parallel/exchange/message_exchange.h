#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/overlapped_sum.h"
#include "lockstep/parallel/exchange/rank_exchange.h"

namespace lockstep {

/// Of ranks that share no memory, or whose gradients a hook sums. Each has
/// parameters and optimizer state of its own and updates all of them.
class MessageExchange : public RankExchange {
 public:
  MessageExchange(const World& world, const ModuleHandle& module,
                  std::vector<torch::Tensor> parameters, int64_t shards,
                  int64_t most_partials, int64_t workers, const CommHook& hook);

  void load_buffers() override {}
  OverlappedSum* overlapped_sum(int64_t chunks) override;
  Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                   StepTotals& totals) override;
  ShardRange own_blocks(int64_t count) const override { return {0, count}; }
  void share(std::vector<double>&) override {}
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;

 private:
  /// A partial sum of a rank: its shards, and which parameters have one.
  struct Head {
    int64_t first, last;
    std::vector<bool> has_gradient;
  };
  /// What each rank tells the others after its backward.
  struct Heads {
    std::vector<std::vector<Head>> of_rank;  // [rank][partial]
    bool is_summed = false;                  // by overlapped_, and rightly
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

  /// The sums that overlapped_ made.
  PartialSum overlapped(const Heads& heads, int64_t chunks) const;
  /// Has the hook sum what the backward did not: a small batch, of which some
  /// ranks have no shard, or several workers.
  void run_hook(const std::vector<PartialSum>& own_partials);
  bool has_gradient(const Heads& heads, size_t p) const;

  World world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  int64_t shards_;
  int64_t most_partials_;  // of a rank
  std::vector<optim::Block> blocks_;
  std::vector<int64_t> at_;  // of each parameter in the flat gradient; the end
  bool has_hook_;
  bool has_one_worker_;
  std::unique_ptr<OverlappedSum> overlapped_;  // if the ranks can use it
  bool was_overlapped_ = false;                // in this step
  bool is_order_known_ = false;  // of the gradients' coming, to all ranks
};

}  // namespace lockstep
