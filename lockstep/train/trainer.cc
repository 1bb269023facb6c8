#include "lockstep/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/base/version.h"
#include "lockstep/comm/agent/link.h"
#include "lockstep/device/memory.h"
#include "lockstep/train/chrome_trace.h"
#include "lockstep/train/evaluate.h"
#include "lockstep/train/loading.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/progress.h"
#include "lockstep/train/resume.h"
#include "lockstep/train/run_checkpoints.h"
#include "lockstep/train/schedule.h"
#include "lockstep/train/snapshot.h"
#include "lockstep/train/state_dict.h"
#include "lockstep/train/step_recorder.h"
#include "lockstep/train/step_runner.h"

namespace lockstep::train {
namespace {

std::string report_path(const TrainOptions& options) {
  return (std::filesystem::path(options.out_dir) / "run.json").string();
}

// Found out before the first step rather than after the last one.
void prepare_outputs(const TrainOptions& options) {
  if (options.world.rank() != 0) return;
  if (!options.trace.empty()) const AtomicFile writable(options.trace);
  if (options.out_dir.empty()) return;
  make_directories(options.out_dir);
  const AtomicFile writable(report_path(options));
}

int64_t count_steps(const TrainOptions& options, int64_t batches) {
  const int64_t limit = options.max_steps > 0
                            ? options.max_steps
                            : std::numeric_limits<int64_t>::max();
  // No number of epochs: as many as max_steps needs.
  if (options.epochs == 0) return limit;
  return std::min(limit, options.epochs * batches);
}

// Adds the seconds that it lives.
class TimeScope {
 public:
  explicit TimeScope(double& sum) : sum_(sum) {}
  ~TimeScope() { sum_ += watch_.seconds(); }
  TimeScope(const TimeScope&) = delete;
  TimeScope& operator=(const TimeScope&) = delete;

 private:
  double& sum_;
  Stopwatch watch_;
};

// What a process keeps when it goes on after another rank was lost.
struct History {
  RunReport report;
  std::vector<double> step_times_s;
  double time_s = 0;    // of the attempts before
  int64_t samples = 0;  // in all steps
  std::shared_ptr<const data::Dataset> training_data;
  std::shared_ptr<const data::Dataset> test_data;
  DataFingerprint data_fingerprint;
  std::string identity;  // of the run, among those of its agent
};

// A run, from its beginning or from where another one was, to its end or to
// the loss of a rank.
class Run {
 public:
  Run(const TrainOptions& options, const std::function<int()>& stop,
      History& history)
      : options_(options),
        stop_(stop),
        history_(history),
        resume_(find_resume(options, history.identity)),
        plan_(make_plan(options, saved_settings())),
        dataset_(open_training_data()),
        train_data_(
            make_loader(options_, plan_, data::Split::kTrain, dataset_)),
        test_data_(open_test_data()),
        total_steps_(count_steps(options_, train_data_->batches())),
        checkpoints_(options_, plan_, total_steps_, data_fingerprint(), resume_,
                     history.identity),
        runner_(options_, plan_, resume_ ? &*resume_ : nullptr),
        progress_(options_.progress && is_first()
                      ? default_progress_style(stdout)
                      : ProgressStyle::kNone,
                  options_.log_every),
        report_(history.report),
        step_times_s_(history.step_times_s),
        samples_(history.samples) {
    describe();
    if (resume_) go_on();
    agent::begin_steps(static_cast<uint64_t>(step_));
  }

  void train() {
    const TraceLane lane(options_.world.rank(), "main");
    if (!options_.trace.empty()) {
      recorder_.emplace(options_.world, plan_.devices, options_.trace_steps);
    }
    {
      const TimeScope timed(history_.time_s);
      while (step_ < total_steps_ && !report_.interrupted) {
        train_epoch(step_ / train_data_->batches());
      }
    }
    finish();
    agent::enter(agent::Phase::kEnd);
  }

 private:
  Settings saved_settings() const {
    if (!resume_) return {};
    Settings settings = resume_->info.run->settings;
    // Nodes came, and nobody said how many shards suit all numbers.
    const int64_t ranks = options_.world.size();
    const auto shards = settings.find("shards");
    const bool may_change = resume_->is_snapshot() && options_.shards == 0 &&
                            shards != settings.end() && ranks > 1;
    if (may_change && std::stoll(shards->second) < ranks) {
      if (is_first()) {
        log_warning("train", fmt::format("{} shards became {}: the run goes "
                                         "on, but not to the same bits; give "
                                         "--shards as many as there may be "
                                         "ranks",
                                         shards->second, ranks));
      }
      settings.erase(shards);
    }
    return settings;
  }

  // Rank 0 writes it into manifests; all see to it that a checkpoint's data are
  // theirs.
  DataFingerprint& data_fingerprint() {
    const bool is_from_disk = resume_ && !resume_->is_snapshot();
    const bool writes = is_first() && !options_.out_dir.empty();
    if (writes || is_from_disk) history_.data_fingerprint.begin(dataset_);
    return history_.data_fingerprint;
  }

  std::shared_ptr<const data::Dataset> open_training_data() {
    auto& dataset = history_.training_data;
    if (!dataset) dataset = data::open(options_.data, data::Split::kTrain);
    options_.model = fit(options_.model, *dataset);
    return dataset;
  }

  std::unique_ptr<data::Loader> open_test_data() const {
    if (!options_.evaluate) return nullptr;
    auto& dataset = history_.test_data;
    if (!dataset) dataset = data::open(options_.data, data::Split::kTest);
    return make_loader(options_, plan_, data::Split::kTest, dataset);
  }

  void describe() {
    report_.lockstep = kVersion;
    report_.command = options_.command;
    report_.strategy = to_string(options_.strategy);
    report_.model = options_.model.name;
    report_.parameters = models::count_parameters(runner_.model());
    report_.world_size = plan_.world_size;
    report_.processes = options_.world.size();
    report_.shards = plan_.shards;
    report_.intra_op_threads = plan_.intra_op_threads;
    report_.batch_size = options_.batch_size;
    report_.split = runner_.parallel()->split(options_.batch_size);
  }

  // As if there had been no stop.
  void go_on() {
    RunCheckpoints::restore(resume_, plan_, runner_);
    const RunPosition& at = resume_->info.run->position;
    const int64_t batches = train_data_->batches();
    if (at.step != resume_->info.step || at.epoch != at.step / batches ||
        at.batch != at.step % batches) {
      throw CheckpointError(
          {.what = resume_->path + " contradicts itself",
           .expected = fmt::format("a place among {} batches", batches),
           .got = fmt::format("step {}, epoch {}, batch {}", at.step, at.epoch,
                              at.batch),
           .fix = "use another checkpoint"});
    }
    if (at.step > total_steps_ && is_first()) {
      log_warning("train",
                  fmt::format("{} is at step {} already, beyond the end of "
                              "this run at step {}",
                              resume_->path, at.step, total_steps_));
    }
    step_ = at.step;
    take_back_steps();
    mean_ = RunningMean(at.loss_sum, at.correct, at.samples);
    progress_.line(
        fmt::format("resumed from {}: step {} of {}",
                    resume_->is_snapshot() ? "memory" : resume_->path, step_,
                    total_steps_));
  }

  // Those that are about to be repeated.
  void take_back_steps() {
    if (report_.losses.empty()) report_.first_step = step_;
    const auto kept =
        static_cast<size_t>(std::max<int64_t>(step_ - report_.first_step, 0));
    if (report_.losses.size() > kept) report_.losses.resize(kept);
    while (!report_.epochs.empty() &&
           report_.epochs.back().epoch >= step_ / train_data_->batches()) {
      report_.epochs.pop_back();
    }
  }

  RunPosition position() const {
    const int64_t batches = train_data_->batches();
    RunPosition at{
        .step = step_, .epoch = step_ / batches, .batch = step_ % batches};
    if (at.batch == 0) return at;
    at.loss_sum = mean_.loss_sum();
    at.correct = mean_.correct();
    at.samples = mean_.samples();
    return at;
  }

  void train_epoch(int64_t epoch) {
    EpochReport epoch_report{.epoch = epoch, .lr = lr(epoch)};
    train_data_->begin(epoch, step_ % train_data_->batches());
    while (step_ < total_steps_) {
      // The first step warmed up: it is kept only if there is no other.
      if (recorder_ && step_ == report_.first_step + 1) recorder_->restart();
      const int64_t begin_ns = trace_clock_ns();
      const auto batch = next_batch();
      if (!batch) break;
      if (recorder_) recorder_->begin_step(begin_ns);
      if (train_batch(*batch, epoch)) {
        report_.interrupted = !regroups_;
        break;
      }
    }
    const bool is_at_end = step_ % train_data_->batches() == 0;
    if (regroups_ && !is_at_end) wait_for_nodes();
    epoch_report.train_loss = mean_.loss();
    epoch_report.train_accuracy = mean_.accuracy();
    report_.epochs.push_back(epoch_report);
    progress_.line(fmt::format(
        "[{}] Epoch {} | Batchsize: {} | Steps: {} | LR: {:.4f} | Loss: "
        "{:.4f} | Acc: {:.2f}%",
        device_names(), epoch, options_.batch_size,
        step_ - epoch * train_data_->batches(), epoch_report.lr, mean_.loss(),
        100 * mean_.accuracy()));
    if (is_at_end) mean_ = {};
    if (regroups_) wait_for_nodes();
  }

  // What ends the run makes this rank wait for the agent.
  [[noreturn]] static void wait_for_nodes() {
    throw CommError({.what = "nodes of the job come or go",
                     .got = "a request of the agent to wait for them"});
  }

  std::optional<data::Batch> next_batch() {
    const TraceSpan span("data", TraceCategory::kWait);
    agent::enter(agent::Phase::kData);
    const Stopwatch waited;
    auto batch = train_data_->next();
    report_.data_wait_s += waited.seconds();
    return batch;
  }

  double lr(int64_t epoch) const {
    return learning_rate(
        options_, {.step = step_, .epoch = epoch, .total_steps = total_steps_});
  }

  /// Returns whether the run is to stop.
  bool train_batch(const data::Batch& batch, int64_t epoch) {
    const Stopwatch watch;
    const StepOutcome outcome =
        runner_.step(batch, step_, lr(epoch), wanted_stop());
    step_times_s_.push_back(watch.seconds());
    if (!outcome.is_finite) stop_on_garbage(batch, outcome, epoch);
    ++step_;
    report_.losses.push_back(outcome.loss);
    mean_.add(outcome.loss, outcome.correct, outcome.samples);
    samples_ += outcome.samples;
    progress_.step({.done = step_,
                    .total = total_steps_,
                    .epoch = epoch,
                    .loss = mean_.loss(),
                    .accuracy = mean_.accuracy(),
                    .samples = outcome.samples});
    agent::count_steps(static_cast<uint64_t>(step_));
    regroups_ = outcome.stop_signal == kRegroupSignal;
    checkpoints_.snapshot(position(), runner_, regroups_);
    if (options_.checkpoint_every > 0 &&
        step_ % options_.checkpoint_every == 0) {
      checkpoints_.save(position(), runner_);
    }
    if (regroups_) return true;
    report_.stop_signal = outcome.stop_signal;
    return outcome.stop_signal != 0;
  }

  int wanted_stop() const {
    const int signal = stop_ ? stop_() : 0;
    return signal == 0 && agent::is_regroup_wanted() ? kRegroupSignal : signal;
  }

  bool is_first() const { return options_.world.rank() == 0; }

  /// Of all ranks.
  std::string device_names() const {
    if (plan_.devices.size() == static_cast<size_t>(plan_.world_size)) {
      return join_names(plan_.devices);
    }
    return join_names(options_.devices);
  }

  [[noreturn]] void stop_on_garbage(const data::Batch& batch,
                                    const StepOutcome& outcome, int64_t epoch) {
    const std::string where = runner_.first_not_finite(batch);
    throw TrainError(
        {.what = fmt::format("step {} (epoch {}, counted from 0) is not "
                             "finite, nothing was updated; first seen in {}",
                             step_, epoch, where),
         .expected = "a finite loss and gradient",
         .got = fmt::format("loss {}", outcome.loss),
         .fix = fmt::format("lower --lr ({:g} at this step) or set "
                            "--clip-grad-norm; {}",
                            lr(epoch), checkpoints_.last_in_words())});
  }

  /// What comes after the steps is not recorded.
  std::vector<RankTrace> stop_recording() {
    if (!recorder_) return {};
    auto traces = recorder_->gather();
    recorder_.reset();
    return traces;
  }

  void finish() {
    const auto traces = stop_recording();
    report_.steps = step_;
    report_.total_time_s = history_.time_s - checkpoints_.stall_s();
    report_.step_time_s = summarize(step_times_s_);
    if (report_.total_time_s > 0) {
      report_.samples_per_s =
          static_cast<double>(samples_) / report_.total_time_s;
    }
    double in_steps_s = 0;
    for (const double seconds : step_times_s_) in_steps_s += seconds;
    runner_.fill(report_, in_steps_s);
    checkpoints_.save(position(), runner_);
    if (!options_.trace.empty() && is_first()) {
      write_chrome_trace(options_.trace, traces);
      progress_.line("trace " + options_.trace);
    }
    if (test_data_ && !report_.interrupted) {
      evaluate_at_end();
    }
    const auto not_saved = checkpoints_.finish(report_);
    report_.parameter_sha256 = parameter_digest(runner_.model());
    progress_.line("parameter_sha256 " + report_.parameter_sha256);
    if (!report_.last_checkpoint.empty()) {
      progress_.line("checkpoint " + report_.last_checkpoint);
    }
    if (!options_.out_dir.empty() && is_first())
      write_report(report_path(options_), report_);
    if (not_saved) throw CheckpointError({.what = *not_saved});
  }

  void evaluate_at_end() {
    report_.test =
        evaluate(runner_.parallel(), *test_data_, stop_, options_.world);
    if (report_.test.samples == 0) {
      report_.interrupted = true;
      report_.stop_signal = stop_ ? stop_() : 0;
      return;
    }
    progress_.line(fmt::format("[{}] Test Acc: {:.4f}%", device_names(),
                               100 * report_.test.accuracy));
  }

  TrainOptions options_;
  std::function<int()> stop_;
  History& history_;
  std::optional<Resume> resume_;
  Plan plan_;
  std::shared_ptr<const data::Dataset> dataset_;
  std::unique_ptr<data::Loader> train_data_;
  std::unique_ptr<data::Loader> test_data_;
  int64_t total_steps_;
  RunCheckpoints checkpoints_;
  StepRunner runner_;
  Progress progress_;
  RunReport& report_;
  std::vector<double>& step_times_s_;
  int64_t& samples_;
  std::optional<StepRecorder> recorder_;
  RunningMean mean_;  // of the epoch so far
  int64_t step_ = 0;
  bool regroups_ = false;
};

// To the end, or until another rank is lost: then that error, and nothing is
// left of the run.
std::optional<CommError> run_once(const TrainOptions& options,
                                  const std::function<int()>& stop,
                                  History& history) {
  try {
    Run(options, stop, history).train();
    return std::nullopt;
  } catch (const CommError& error) {
    if (!options.rejoin || !agent::may_wait()) throw;
    return error;
  }
}

}  // namespace

RunReport run_training(const TrainOptions& options,
                       const std::function<int()>& stop) {
  // Before the first tensor, so that all of them are on an account.
  install_accounting_allocator();
  prepare_outputs(options);
  std::optional<agent::PromiseToWait> promise;
  if (options.rejoin) promise.emplace();
  static std::atomic<int> runs = 0;
  History history;
  history.identity = identity_of_run(options, runs++);
  TrainOptions now = options;
  for (;;) {
    const auto lost = run_once(now, stop, history);
    if (!lost) return history.report;
    // With it goes the memory that was shared with the others.
    now.world = World();
    if (!options.rejoin(now, lost->what())) throw CommError(*lost);
    ++history.report.recoveries;
  }
}

}  // namespace lockstep::train
