#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/models/model.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/train/options.h"
#include "lockstep/train/plan.h"
#include "lockstep/train/rank_report.h"
#include "lockstep/train/resume.h"

namespace lockstep::train {

struct StepOutcome {
  double loss = 0;
  int64_t correct = 0;
  int64_t samples = 0;
  /// False: the loss or the gradient's norm is not, and nothing was updated.
  bool is_finite = true;
  int stop_signal = 0;  ///< some rank wants to stop, for this
};

/// As a stop signal: the ranks are to wait for others. Never sent as one: it is
/// the first number that no signal has (the last real-time signal has NSIG -
/// 1).
inline constexpr int kRegroupSignal = NSIG;

/// A model, its optimizer and the way a strategy makes a step with them.
class StepRunner {
 public:
  /// Builds the model from options.seed and loads options.init_from, or
  /// `resumed`. Of several ranks, rank 0's model is everyone's.
  StepRunner(const TrainOptions& options, const Plan& plan,
             const Resume* resumed = nullptr);

  /// Gives all ranks the optimizer's state of `resumed`. Collective.
  void load_optimizer(const Resume& resumed);

  /// One step: forward, loss, backward, update. Of several ranks, each with
  /// its part of the batch, all get the outcome of the whole.
  StepOutcome step(const data::Batch& batch, int64_t step, double lr,
                   int stop_signal);

  /// After a step that was not finite: where that is seen first.
  std::string first_not_finite(const data::Batch& batch);

  DataParallel<models::Model>& parallel() { return parallel_; }
  const models::Model& model() const { return *model_; }
  const optim::Optimizer& optimizer() const { return *optimizer_; }

  /// What is at work, into `report`: versions, sizes, devices, threads.
  void describe(RunReport& report);
  /// Starts the accounts of samples, time and memory peaks anew: what came
  /// before was warm-up.
  void restart_accounts();
  /// What the steps since then did, device by device, into `report`: samples,
  /// busy fraction of `step_seconds`, memory, phases. Collective.
  void fill(RunReport& report, double step_seconds) const;

 private:
  StepOutcome sharded_step(const data::Batch& batch);
  StepOutcome classic_step(const data::Batch& batch);
  void count(const data::Batch& batch, const PhaseTimes& phases);
  int64_t copies() const;
  void agree(StepOutcome& outcome, int stop_signal) const;
  RankReport rank_report(double step_seconds) const;

  TrainOptions options_;
  Plan plan_;
  std::shared_ptr<models::Model> model_;
  DataParallel<models::Model> parallel_;
  std::unique_ptr<optim::Optimizer> optimizer_;

  std::vector<int64_t> samples_;  // by device
  PhaseTimes phases_;             // sums over the steps
  double output_device_s_ = 0;    // classic: loss and update, in this thread
  int64_t steps_ = 0;
};

}  // namespace lockstep::train
