#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/parallel/exchange/message_exchange.h"
#include "lockstep/parallel/exchange/partition.h"
#include "lockstep/parallel/exchange/zero_stage.h"

namespace lockstep {

/// Exchange between ranks that share no memory and partition the optimizer's
/// state (ZeRO: Rajbhandari et al., 2020, arXiv 1910.02054). Each rank has a
/// part of the state (Partition), updates that part of the parameters, and
/// sends the result to the other ranks.
///
/// Only the owners of a large gradient's elements get their sum. At
/// ZeroStage::kGradients, a rank copies its own part of a sum and frees the
/// gradient at once.
class ZeroExchange final : public MessageExchange {
 public:
  /// `stage` must not be kNone. For the other arguments, see MessageExchange.
  ZeroExchange(const ProcessGroup& world, const ModuleHandle& module,
               const std::vector<torch::Tensor>& parameters, int64_t shards,
               int64_t most_partials, ZeroStage stage);
  ~ZeroExchange() override;
  ZeroExchange(const ZeroExchange&) = delete;
  ZeroExchange& operator=(const ZeroExchange&) = delete;

  /// Throws InvalidArgument if the ranks can't partition the state.
  static void check(const ProcessGroup& world, int64_t shards, int64_t workers,
                    const CommHook& hook);

  bool begin_step(bool is_driven) override {
    is_driven_ = is_driven;
    return false;
  }
  bool divides_update() const override { return true; }
  std::vector<size_t> own_blocks(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions) const override;
  void share(std::vector<double>& values) override;
  std::vector<torch::Tensor> whole_sums(
      std::vector<torch::Tensor> sums) override;
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;
  torch::Tensor whole_state(const torch::Tensor& state) override;

 protected:
  Problem sent_too_early(const std::string& name, int rank) const override;

 private:
  /// A StepSum::LargeSum.
  torch::Tensor sum_large(size_t p, const torch::Tensor& elements);

  ZeroStage stage_;
  Partition partition_;
  // This rank's part of the sums, at ZeroStage::kGradients. By parameter,
  // undefined for one that is not cut.
  std::vector<torch::Tensor> kept_;
  bool is_driven_ = false;  // the step has an optimizer
};

}  // namespace lockstep
