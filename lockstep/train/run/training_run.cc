#include "lockstep/train/run/training_run.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/trace.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/train/rank_trace.h"

namespace lockstep::training {
namespace {

data::LoaderOptions loader_options(const TrainOptions& options,
                                   const Plan& plan) {
  data::LoaderOptions loader;
  const ShardRange own = shards_of_worker(plan.rank, plan.ranks, plan.shards);
  if (plan.ranks > 1) {
    loader.part({.shards = plan.shards, .first = own.first, .last = own.last});
  }
  return loader.batch_size(options.batch_size())
      .workers(options.loading().workers())
      .shuffle(options.loading().shuffle())
      // In a small last batch, a rank may have no sample to make a step with.
      .drop_last(options.loading().drop_last() ||
                 options.communication().is_local())
      .seed(options.seed());
}

data::LoaderOptions evaluation_options(const TrainOptions& options,
                                       const Plan& plan) {
  // Without gradients there is memory for more than a training batch.
  const int64_t batch_size = options.evaluation().batch_size() > 0
                                 ? options.evaluation().batch_size()
                                 : std::max<int64_t>(options.batch_size(), 250);
  return loader_options(options, plan)
      .batch_size(batch_size)
      .shuffle(false)
      .drop_last(false);
}

// Throws if no batch could ever be full. The size and the memory of the steps
// would not be those that were asked for.
void check_fills_a_batch(const data::BatchSource& data,
                         const TrainOptions& options) {
  const int64_t samples = data.size();
  if (options.batch_size() <= samples) return;
  throw InvalidArgument(
      "train",
      {.code = ErrorCode::kBadOption,
       .what = fmt::format("the data have {}, which do not fill a batch",
                           counted(samples, data.sample_name())),
       .expected = fmt::format("a batch size of at most {}", samples),
       .got = fmt::format("{}", options.batch_size()),
       .fix = fmt::format("use --batch-size {}, or more data", samples)});
}

int64_t count_steps(const TrainOptions& options, int64_t batches) {
  const int64_t limit = options.max_steps() > 0
                            ? options.max_steps()
                            : std::numeric_limits<int64_t>::max();
  // 0 epochs mean: run until max_steps.
  if (options.epochs() == 0) return limit;
  return std::min(limit, options.epochs() * batches);
}

constexpr size_t kMaxRanksShown = 8;

// Adds the seconds of its lifetime to a sum.
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

// Ends the run with an error that makes this rank wait for the agent.
[[noreturn]] void wait_for_nodes() {
  throw CommError({.code = ErrorCode::kRendezvousFailed,
                   .what = "the set of nodes of the job changes",
                   .got = "a request of the agent to wait for them"});
}

}  // namespace

std::string report_path(const TrainOptions& options) {
  if (options.out_dir().empty()) return "";
  return (std::filesystem::path(options.out_dir()) / "run.json").string();
}

Run::Run(Task& task, const TrainOptions& options, const RunContext& context,
         RunHistory& history)
    : task_(task),
      options_(options),
      context_(context),
      history_(history),
      resume_(find_resume(task, options, context.world, history.identity)),
      plan_(make_plan(options, context.world,
                      saved_settings(options, context.world, resume_))),
      training_data_(open_training_data()),
      training_batches_(std::make_unique<data::Loader>(
          training_data_, loader_options(options_, plan_))),
      evaluation_batches_(open_evaluation_data()),
      total_steps_(count_steps(options_, training_batches_->batches())),
      checkpoints_(task, options_, context_.world, plan_, total_steps_,
                   data_fingerprint(), resume_, history.identity),
      runner_(task, options_, context_.world, plan_,
              resume_ ? &*resume_ : nullptr),
      guard_(context_.world,
             steps_between_comparisons(options_, context_.world),
             history.guard),
      log_(options_, plan_, training_batches_->batches(), history.recordings) {
  if (is_first() && !options_.log().tensorboard().empty()) {
    tensorboard_.emplace(options_.log().tensorboard());
  }
  log_.report().command = context_.command;
  // The run may have begun in an earlier attempt of this process.
  if (log_.report().started_at == 0)
    log_.report().started_at = monitor::now_s();
  runner_.describe(log_.report());
  log_.begin(training_data_->size(), training_data_->sample_name(),
             total_steps_);
  if (resume_) {
    runner_.load_state(*resume_);
    if (resume_->state) {
      set_random_state(resume_->state->random_state(), plan_.devices);
    }
    const RunPosition at = position_in_epochs(
        options_, plan_, *resume_, training_batches_->batches(), total_steps_);
    step_ = at.step;
    is_ended_ = at.is_ended;
    log_.go_on_at(at);
    log_.line(fmt::format("resumed from {}: step {} of {}",
                          resume_->is_snapshot() ? "memory" : resume_->path,
                          step_, total_steps_));
    if (is_ended_) {
      log_.line(
          "the run has ended before its last step, by --early-stop or a "
          "callback; --allow-changes continues it");
    }
  }
  if (!resume_ && log_.report().recoveries > 0) {
    log_.go_on_at({});
  }
  if (options_.log().live_status()) {
    live_.emplace(options_, context_.world, log_.report(), total_steps_,
                  [this] { return runner_.device_use(); });
  }
  trace_.emplace(context_.world, plan_.devices, options_.log(), step_);
  list_callbacks();
  control::begin_steps(static_cast<uint64_t>(step_));
}

void Run::train() {
  const TraceLane lane(context_.world.rank(), "main");
  if (is_first() && context_.on_begin) context_.on_begin();
  {
    const TimeScope timed(history_.recordings.time_s);
    while (step_ < total_steps_ && !is_ended_ && !log_.report().interrupted) {
      train_epoch(step_ / training_batches_->batches());
    }
  }
  finish();
  control::enter(control::Phase::kEnd);
}

// Rank 0 writes the fingerprint into manifests. Every rank checks that a
// checkpoint's data are its own.
const DataFingerprint& Run::data_fingerprint() {
  const bool is_from_disk = resume_ && !resume_->is_snapshot();
  const bool writes = is_first() && !options_.out_dir().empty();
  DataFingerprint& sha256 = history_.data_fingerprint;
  if ((writes || is_from_disk) && !sha256.valid()) {
    const bool is_read_by_one = options_.loading().workers() <= 1;
    sha256 =
        std::async(std::launch::async, [data = training_data_, is_read_by_one] {
          std::unique_lock<std::mutex> turn;
          if (is_read_by_one) turn = data::take_turn(*data);
          const std::string known = data->fingerprint();
          return known.empty()
                     ? "not known, of " + counted(data->size(), "sample")
                     : known;
        }).share();
  }
  return sha256;
}

std::shared_ptr<const data::BatchSource> Run::open_training_data() {
  if (resume_) task_.go_on_with(resume_->info.model);
  task_.begin(options_, plan_,
              saved_settings(options_, context_.world, resume_));
  auto& data = history_.training_data;
  if (!data) data = task_.training_data();
  if (data) check_fills_a_batch(*data, options_);
  return data;
}

std::unique_ptr<data::Loader> Run::open_evaluation_data() const {
  if (!options_.evaluation().enabled()) return nullptr;
  auto& data = history_.evaluation_data;
  if (!data) data = task_.evaluation_data();
  if (!data) return nullptr;
  return std::make_unique<data::Loader>(data,
                                        evaluation_options(options_, plan_));
}

RunPosition Run::position() const {
  const int64_t batches = training_batches_->batches();
  RunPosition at{.step = step_,
                 .epoch = step_ / batches,
                 .batch = step_ % batches,
                 .is_ended = is_ended_};
  if (at.batch == 0) return at;
  at.samples = log_.mean().samples();
  at.sums = log_.mean().sums();
  return at;
}

void Run::train_epoch(int64_t epoch) {
  const int64_t batches = training_batches_->batches();
  epoch_ = epoch;
  tell(&Callback::before_epoch);
  training_batches_->set_epoch(epoch, step_ % batches);
  data::Loader::Iterator next = training_batches_->begin();
  while (step_ < total_steps_) {
    tell(&Callback::before_batch);
    const auto batch = next_batch(next);
    if (!batch) break;
    if (train_batch(*batch, epoch)) {
      log_.report().interrupted = !regroups_ && !is_ended_;
      break;
    }
  }
  const bool is_whole = step_ % batches == 0;
  if (regroups_ && !is_whole) wait_for_nodes();
  tell(&Callback::after_epoch, log_.mean().means());
  if (is_whole && options_.checkpoint().each_epoch() && !regroups_) save();
  if (regroups_) wait_for_nodes();
}

// Returns the batch at `next`, which then moves on, or nothing at the end.
std::optional<data::Batch> Run::next_batch(data::Loader::Iterator& next) {
  const TraceSpan span("data", TraceCategory::kWait);
  control::enter(control::Phase::kData);
  const TimeScope waited(log_.report().data_wait_s);
  if (next == training_batches_->end()) return std::nullopt;
  data::Batch batch = task_.prepare(std::move(*next));
  ++next;
  return batch;
}

// An epoch should begin, and a checkpoint should end, with a step that is
// proven, the last one above all. Short epochs must not make training slow.
bool Run::is_proof_due() const {
  constexpr int64_t kFewestSteps = 512;
  if (step_ + 1 == total_steps_) return true;
  const bool begins_epoch = step_ % training_batches_->batches() == 0;
  return (begins_epoch || is_saved_at(step_ + 1)) &&
         step_ - proven_at_ >= kFewestSteps;
}

StepOutcome Run::make_step(const data::Batch& batch, int64_t epoch) {
  if (is_proof_due()) {
    runner_.verify_next_step();
    proven_at_ = step_;
  }
  try {
    return runner_.step(
        batch, {.step = step_, .epoch = epoch, .total_steps = total_steps_},
        wanted_stop());
  } catch (const ParallelError& error) {
    // Only the rank that updates a block finds it.
    if (error.code() == ErrorCode::kParameterWritten) {
      checkpoints_.discard_snapshot(step_);
    }
    if (error.code() != ErrorCode::kParametersDiffer || !guard_.is_on()) throw;
    log_warning("train", lockstep::text_of(error));
    // All ranks are here, with the state from before the step.
    guard_.compare(step_, runner_.state_digest());
    throw;  // what differs is not in the digest
  }
}

// Returns true if the run is to stop.
bool Run::train_batch(const data::Batch& batch, int64_t epoch) {
  tell(&Callback::before_step);
  const double loss_limit = runner_.loss_limit();
  const Stopwatch watch;
  const StepOutcome outcome = make_step(batch, epoch);
  last_ = {.samples = outcome.samples,
           .step_s = watch.seconds(),
           .is_skipped = outcome.is_skipped};
  if (!outcome.is_finite) stop_on_garbage(outcome, epoch);
  ++step_;
  if (outcome.is_spike) {
    answer_spike(outcome.loss(), loss_limit);
  } else if (outcome.is_empty && is_first()) {
    log_.line(fmt::format("step {} has no target that counts and was left out",
                          step_));
  } else if (outcome.is_skipped && is_first()) {
    log_.line(fmt::format(
        "step {} overflowed in float16 and was left out; the loss is scaled "
        "by {:g} from now on",
        step_, runner_.loss_scale()));
  }
  if (!outcome.repaired_shards.empty()) {
    guard_.note_repaired(step_, outcome.repaired_shards);
  }
  control::count_steps(static_cast<uint64_t>(step_));
  tell(&Callback::after_step, outcome.metrics);
  compare_ranks(outcome);
  regroups_ = outcome.stop_signal == kRegroupSignal;
  is_ended_ = outcome.stop_signal == kEndSignal;
  // Evaluated before the snapshot, so that a run which repeats the step also
  // repeats the evaluation.
  if (options_.evaluation().every() > 0 &&
      step_ % options_.evaluation().every() == 0 && evaluation_batches_ &&
      !regroups_) {
    const TestReport test = evaluate();
    if (test.samples > 0) log_.add_evaluation(test, step_);
  }
  checkpoints_.snapshot(position(), runner_, regroups_);
  if (options_.checkpoint().every() > 0 &&
      step_ % options_.checkpoint().every() == 0) {
    save();
  }
  if (regroups_ || is_ended_) return true;
  log_.report().stop_signal = outcome.stop_signal;
  return outcome.stop_signal != 0;
}

bool Run::is_saved_at(int64_t step) const {
  const int64_t every = options_.checkpoint().every();
  return step == total_steps_ || (every > 0 && step % every == 0) ||
         (options_.checkpoint().each_epoch() &&
          step % training_batches_->batches() == 0);
}

// Also compares before each save, so that whatever is saved was compared.
void Run::compare_ranks(const StepOutcome& outcome) {
  if (!guard_.is_on()) return;
  const bool is_saved = is_saved_at(step_) ||
                        step_ % training_batches_->batches() == 0 ||
                        outcome.stop_signal != 0;
  if (!is_saved && !guard_.is_due(step_)) return;
  const TraceSpan span("compare ranks", TraceCategory::kCompute);
  guard_.compare(step_, runner_.state_digest());
}

void Run::answer_spike(double loss, double limit) {
  std::string text = fmt::format(
      "step {}: the loss {:.4g} is a spike, as it is above {:.4g}; its update "
      "was left out",
      step_, loss, limit);
  if (options_.spikes().action() == OnSpike::kRollBack) {
    if (const auto earlier = checkpoints_.last_regular()) {
      runner_.roll_back(*earlier);
      ++log_.report().rollbacks;
      text += fmt::format(
          ", and the run went back to the weights of {}, and continues with "
          "the next batch",
          earlier->path);
    } else {
      text += "; there is no checkpoint yet to go back to";
    }
  }
  if (is_first()) log_.line(text);
}

// The log, the status and the traces come first, so that they have a step
// before a callback of the task prints or throws. The CSV and TensorBoard files
// come last.
void Run::list_callbacks() {
  callbacks_.push_back(&log_);
  if (live_) callbacks_.push_back(&*live_);
  callbacks_.push_back(&*trace_);
  for (const auto& callback : runner_.callbacks()) {
    callbacks_.push_back(callback.get());
  }
  if (tensorboard_) callbacks_.push_back(&*tensorboard_);
}

int Run::wanted_stop() const {
  // First, because a run that is stopped in its last step is not continued.
  const bool is_enough =
      std::any_of(callbacks_.begin(), callbacks_.end(),
                  [](const auto& one) { return one->wants_to_stop(); });
  if (is_enough) return kEndSignal;
  if (const int signal = this->signal(); signal != 0) return signal;
  // SIGPIPE is the signal for output that nobody reads.
  if (output_failure()) return SIGPIPE;
  return control::is_regroup_wanted() ? kRegroupSignal : 0;
}

void Run::stop_on_garbage(const StepOutcome& outcome, int64_t epoch) {
  if (const std::string cause = runner_.damage_by_links(); !cause.empty()) {
    throw TrainError(
        {.code = ErrorCode::kBadLink,
         .what = fmt::format("step {} (epoch {}, counted from 0) is not finite "
                             "because copies between devices arrive changed, "
                             "nothing was updated; {}",
                             step_, epoch, cause),
         .expected = "what was sent",
         .got = fmt::format("loss {}", outcome.loss()),
         .fix = fmt::format("run `lockstep check` for details, or continue "
                            "through host memory with --bad-links stage; {}",
                            checkpoints_.last_in_words())});
  }
  throw TrainError(
      {.code = ErrorCode::kNotFinite,
       .what = fmt::format("step {} (epoch {}, counted from 0) is not "
                           "finite, nothing was updated{}{}",
                           step_, epoch,
                           outcome.not_finite.empty() ? "" : "; first seen in ",
                           outcome.not_finite),
       .expected = "a finite loss and gradient",
       .got = fmt::format("loss {}", outcome.loss()),
       .fix = fmt::format("lower the learning rate, --lr ({:g} at this step), "
                          "or set --clip-grad-norm; {}",
                          runner_.lr(), checkpoints_.last_in_words())});
}

void Run::write_recording() {
  auto traces = trace_->gather();
  if (!options_.log().trace().empty()) {
    write_output([&] {
      if (!is_first()) return;
      write_chrome_trace(options_.log().trace(), traces);
      log_.line("trace " + options_.log().trace());
    });
    traces = typical_step(traces);
  }
  if (traces.size() > kMaxRanksShown) traces.resize(kMaxRanksShown);
  log_.report().time_line = std::move(traces);
}

void Run::finish() {
  // Only the steps are recorded.
  trace_->stop();
  log_.end_steps(step_, checkpoints_.stall_s(), runner_);
  save();
  describe_machine(context_.world, plan_.devices.front(), log_.report());
  write_recording();
  if (evaluation_batches_ && !log_.report().interrupted) evaluate_at_end();
  const auto not_saved = checkpoints_.finish(log_.report());
  write_output([this] { log_.end(runner_, report_path(options_)); });
  const auto not_written = output_failure();
  if (not_saved) {
    if (not_written) log_warning("train", text_of(*not_written));
    throw CheckpointError(
        {.code = ErrorCode::kCheckpointNotSaved, .what = *not_saved});
  }
  if (not_written) {
    throw IoError({.code = not_written->code(),
                   .what = text_of(*not_written),
                   .fix = checkpoints_.last_in_words()});
  }
}

void Run::write_output(c10::function_ref<void()> write) {
  try {
    write();
  } catch (const IoError& error) {
    if (!write_failure_) write_failure_ = error;
  }
}

std::optional<IoError> Run::output_failure() const {
  return write_failure_ ? write_failure_ : log_.output_failure();
}

RunState Run::state() const {
  RunState state = last_;
  state.step = step_;
  state.epoch = epoch_;
  state.total_steps = total_steps_;
  state.lr = runner_.lr();
  return state;
}

TestReport Run::evaluate() {
  tell(&Callback::before_evaluation);
  int64_t done = 0;
  TestReport test = runner_.evaluate(*evaluation_batches_, [&] {
    log_.show_evaluation(done++, evaluation_batches_->batches());
    return signal() != 0;
  });
  if (test.samples == 0) return test;
  tell(&Callback::after_evaluation, test);
  const BestEvaluation* best = runner_.best();
  if (best != nullptr && best->is_new()) {
    log_.report().best = BestReport{
        .step = best->step(), .metric = best->metric(), .value = best->value()};
    checkpoints_.save_best(position(), runner_);
  }
  return test;
}

void Run::save() {
  tell(&Callback::before_checkpoint);
  checkpoints_.save(position(), runner_);
  tell(&Callback::after_checkpoint);
}

void Run::evaluate_at_end() {
  auto& evaluations = log_.report().evaluations;
  const bool is_known =
      !evaluations.empty() && evaluations.back().step == step_;
  const TestReport test = is_known ? evaluations.back().test : evaluate();
  if (is_known) evaluations.pop_back();
  log_.end_evaluation(test);
  if (test.samples > 0) return;
  log_.report().interrupted = true;
  log_.report().stop_signal = signal();
}

}  // namespace lockstep::training
