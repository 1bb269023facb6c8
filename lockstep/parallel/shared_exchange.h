#pragma once

#include <span>
#include <vector>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/parallel/rank_exchange.h"

namespace lockstep {

/// Of ranks on one host. Rank 0's memory holds what there is once: parameters,
/// optimizer state, buffers. Each rank's own holds its partial gradients and a
/// table that says where they are.
class SharedExchange : public RankExchange {
 public:
  SharedExchange(const World& world, const ModuleHandle& module,
                 std::vector<torch::Tensor> parameters, int64_t shards);

  void load_buffers() override;
  Reduction reduce(std::vector<PartialSum> own, int64_t chunks,
                   StepTotals& totals) override;
  ShardRange own_blocks(int64_t count) const override;
  void share(std::vector<double>& values) override;
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;

 private:
  struct Table;

  /// The next bytes of rank 0's memory.
  size_t take(size_t bytes);
  torch::Tensor like_at(const torch::Tensor& tensor, int rank, size_t offset);
  Table& table(int rank) const;
  std::span<double> losses(int rank) const;
  std::span<uint8_t> has_gradient(int rank, size_t partial) const;
  std::span<double> values(int rank) const;
  void publish(const std::vector<PartialSum>& own, const StepTotals& totals);
  PartialSum partial_of(int rank, size_t partial) const;

  World world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  int64_t shards_;
  size_t most_partials_;
  size_t most_values_;

  SharedMemory common_;  // rank 0's
  size_t taken_ = 0;
  std::vector<torch::Tensor> kept_buffers_;  // in common_

  SharedMemory memory_;  // each rank's own
  size_t gradients_at_ = 0;
  // [rank][partial][parameter], in memory_.
  std::vector<std::vector<std::vector<torch::Tensor>>> gradients_;
};

}  // namespace lockstep
