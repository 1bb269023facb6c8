#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/rank_exchange.h"
#include "lockstep/parallel/exchange/step_sum.h"

namespace lockstep {

/// Exchange between ranks that share no memory, or whose gradients are summed
/// by a hook. Each rank has its own parameters and optimizer state and updates
/// all of them.
///
/// StepSum sums the gradients. It can't if the ranks' shards are no nodes of
/// the tree (StepSum::can_sum()), for example after a change of the number of
/// ranks. Then the partial sums are broadcast in turn, and each rank adds them
/// along the tree, which sends more bytes.
///
/// The phase of the StepSum says what reduce() has to do:
///
///   kFinished   the gradients were sent in the backward: take the sums
///   kOpen       the first step; its backward counted the gradients: send
///               them now
///   otherwise   the backward was not followed: send them now
class MessageExchange : public RankExchange {
 public:
  /// `options` are those of the StepSum.
  MessageExchange(const ProcessGroup& world, const ModuleHandle& module,
                  std::vector<torch::Tensor> parameters, int64_t shards,
                  int64_t most_partials, int64_t workers,
                  StepSum::Options options);

  StepSum* step_sum(int64_t chunks) override;
  Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                   StepTotals& totals) override;
  bool divides_update() const override { return false; }
  std::vector<size_t> own_blocks(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions) const override;
  void share(std::vector<double>& /*values*/) override {}
  std::vector<torch::Tensor> whole_sums(
      std::vector<torch::Tensor> sums) override;
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;

 protected:
  const ProcessGroup& world() const { return world_; }
  const std::vector<torch::Tensor>& parameters() const { return parameters_; }
  /// Returns the problem of a gradient of parameter `name` that changed on
  /// `rank` after it was sent.
  virtual Problem sent_too_early(const std::string& name, int rank) const;
  /// Ends the thread that sums. No step may follow.
  void stop_sums() { step_sum_.reset(); }

 private:
  /// Gives every rank the reports of all ranks, in reports_.
  void exchange_reports(const std::vector<PartialSum>& own_partials,
                        StepTotals& totals);
  /// Throws ParallelError if a gradient changed after it was sent.
  void check_sent() const;
  /// Returns the sums that step_sum_ made.
  Reduction take_sums(int64_t chunks);
  /// Sends the partial sums of each rank to all ranks, and returns their sum
  /// along the tree of `chunks` shards. A rank holds few partial sums at a
  /// time, as in append_partial().
  std::vector<PartialSum> gather_and_add(std::vector<PartialSum> own_partials,
                                         int64_t chunks) const;
  /// Returns the phase of step_sum_, or kIdle without one.
  SyncPhase phase() const;
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
  bool has_one_worker_;
  std::unique_ptr<StepSum> step_sum_;  // null if the ranks can't use it
};

}  // namespace lockstep
