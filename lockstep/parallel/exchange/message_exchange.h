#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/exchange/step_sum.h"

namespace lockstep {

/// Exchange between ranks that share no memory, or whose gradients are summed
/// by a hook. Each rank has its own parameters and optimizer state and updates
/// all of them. With ZeRO, each rank has a part of the optimizer state, updates
/// that part of the parameters, and sends the result to the other ranks.
///
/// StepSum sums the gradients if that gives the same bits as the tree. If
/// the ranks' shards are not nodes of the tree, or a small batch leaves some
/// ranks without a shard, each rank sums some bytes of all gradients:
/// an all-to-all sends each rank its bytes, it sums them in the order of the
/// tree, and a second all-to-all sends the sums to all ranks.
///
/// The phase of the StepSum says what reduce() has to do:
///
///   kFinished   the gradients were sent in the backward: take the sums
///   kOpen       the first step; its backward counted the gradients: send
///               them now
///   otherwise   the backward was not followed: send them now
class MessageExchange : public RankExchange {
 public:
  MessageExchange(const ProcessGroup& world, const ModuleHandle& module,
                  std::vector<torch::Tensor> parameters, int64_t shards,
                  int64_t most_partials, int64_t workers, ZeroStage zero,
                  const CommHook& hook);

  bool begin_step(bool is_driven) override {
    is_driven_ = is_driven;
    return false;
  }
  StepSum* step_sum(int64_t chunks) override;
  Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                   StepTotals& totals) override;
  bool divides_update() const override { return cuts_state(); }
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
  /// Gives every rank the reports of all ranks, in reports_.
  void exchange_reports(const std::vector<PartialSum>& own_partials,
                        StepTotals& totals);
  /// Returns the range of blocks_ that rank `rank` sums, and the range of the
  /// flat gradient that these blocks take.
  ShardRange blocks_of_rank(int rank) const;
  ShardRange bytes_of_rank(int rank) const;
  torch::Tensor flatten(const PartialSum& partial) const;
  /// Returns this rank's bytes of every partial sum of every rank: [rank] is
  /// (partials, bytes).
  std::vector<torch::Tensor> scatter_partials(
      const std::vector<PartialSum>& own_partials);
  /// Returns the sum of `partials` along the tree of `chunks` shards.
  torch::Tensor sum(const std::vector<torch::Tensor>& partials,
                    int64_t chunks) const;

  /// Throws ParallelError if a gradient changed after it was sent.
  void check_sent() const;
  /// Returns the sums made by step_sum_.
  Reduction take_sums(int64_t chunks);
  /// Returns the sums, exchanged by all-to-all.
  Reduction exchange_partials(std::vector<PartialSum> own_partials,
                              int64_t chunks);
  bool cuts_state() const { return zero_ != ZeroStage::kNone; }
  /// Returns whether any rank reported a gradient of parameter `p`.
  bool has_gradient(size_t p) const;

  ProcessGroup world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::string> names_;  // names of parameters_
  int64_t shards_;
  StepReport::Shape report_shape_;
  std::vector<torch::Tensor> report_bytes_;  // memory of reports_
  std::vector<StepReport> reports_;          // of this step, by rank
  std::vector<optim::Block> blocks_;
  torch::TensorOptions bytes_;  // of messages; device of the parameters
  // Offsets in the flat gradient, by parameter and by block; its size is last.
  std::vector<int64_t> at_;
  std::vector<int64_t> block_at_;
  bool has_hook_;
  bool has_one_worker_;
  ZeroStage zero_;
  Partition partition_;
  std::unique_ptr<StepSum> step_sum_;  // null if the ranks can't use it
  bool is_driven_ = false;             // the step has an optimizer
  bool has_pieces_ = false;  // the sums of this step are only this rank's part
};

}  // namespace lockstep
