#include "lockstep/train/run/run_checkpoints.h"

#include <filesystem>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/trace.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/comm/environment.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/train/run/state_guard.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::training {
namespace {

constexpr int kMinKept = 2;
constexpr int kUsuallyKept = 3;

int checkpoints_to_keep(const TrainOptions& options) {
  if (options.checkpoint().keep() > 0) return options.checkpoint().keep();
  return options.checkpoint().each_epoch() ? std::numeric_limits<int>::max()
                                           : kUsuallyKept;
}

// Returns true if the run has all ranks of the job. A launcher may have started
// several independent runs.
bool is_whole_job(const ProcessGroup& world) {
  return read_environment().world_size == world.size();
}

// Returns the number of steps between snapshots. A snapshot needs state that
// the ranks are known to have in common: they have it where they compared it,
// and with local steps at the outer steps.
int64_t steps_of_snapshots(const TrainOptions& options,
                           const ProcessGroup& world) {
  if (const int64_t compared = steps_between_comparisons(options, world)) {
    return round_up(options.checkpoint().snapshot_every(), compared);
  }
  if (!options.communication().is_local())
    return options.checkpoint().snapshot_every();
  return round_up(options.checkpoint().snapshot_every(),
                  options.communication().local_steps());
}

}  // namespace

RunCheckpoints::RunCheckpoints(const Task& task, const TrainOptions& options,
                               const ProcessGroup& world, const Plan& plan,
                               int64_t total_steps, const DataFingerprint& data,
                               const std::optional<Resume>& resume,
                               const std::string& identity)
    : task_(task),
      options_(options),
      world_(world),
      plan_(plan),
      total_steps_(total_steps),
      data_(data),
      snapshots_(is_whole_job(world) ? steps_of_snapshots(options, world) : 0,
                 identity) {
  if (resume && !resume->is_snapshot()) {
    check_settings(options, plan, *resume->info.run,
                   settings_of(task, options, plan, total_steps, data_.get()),
                   versions_of(plan));
    resumed_from_ = resume->path;
    std::error_code ignored;
    is_resumed_here_ = std::filesystem::equivalent(
        std::filesystem::path(resume->path) / "..", options.out_dir(), ignored);
    saved_step_ = resume->info.step;
  }
  if (!options.out_dir().empty()) {
    writer_.emplace(options.out_dir(), checkpoints_to_keep(options), world);
    if (!options.checkpoint().save_best().empty()) {
      // The newest checkpoint here is the best one. One older one is kept.
      best_writer_.emplace(
          (std::filesystem::path(options.out_dir()) / "best").string(),
          kMinKept, world);
    }
  }
}

CheckpointContent RunCheckpoints::content(const RunPosition& position,
                                          const StepRunner& runner,
                                          const std::string& data) const {
  const Settings settings =
      settings_of(task_, options_, plan_, total_steps_, data);
  return {.info = {.model = task_.model(),
                   .step = position.step,
                   .epoch = position.epoch,
                   .parameter_sha256 = {},
                   .run = RunRecord{.position = position,
                                    .settings = settings,
                                    .versions = versions_of(plan_)}},
          .model = runner.model_state(),
          .parameters = runner.parameters(),
          .optimizer = runner.state(),
          .random = random_state(plan_.devices)};
}

void RunCheckpoints::snapshot(const RunPosition& position, StepRunner& runner,
                              bool is_last) {
  if (!snapshots_.is_due(position.step, is_last)) return;
  const TraceSpan span("snapshot", TraceCategory::kCompute);
  control::enter(control::Phase::kSnapshot);
  runner.load_buffers();
  // Stands for the fingerprint: all processes of a job are started with the
  // same data.
  snapshots_.save(content(position, runner, "of the job"));
}

void RunCheckpoints::save(const RunPosition& position,
                          const StepRunner& runner) {
  if (!writer_ || saved_step_ == position.step) return;
  saved_step_ = position.step;
  write(*writer_, position, runner);
}

void RunCheckpoints::save_best(const RunPosition& position,
                               const StepRunner& runner) {
  if (best_writer_) write(*best_writer_, position, runner);
}

void RunCheckpoints::write(CheckpointWriter& writer,
                           const RunPosition& position,
                           const StepRunner& runner) {
  const TraceSpan span("checkpoint", TraceCategory::kCompute);
  control::enter(control::Phase::kCheckpoint);
  writer.save(content(position, runner, data_.valid() ? data_.get() : ""));
}

std::optional<Resume> RunCheckpoints::last_regular() {
  if (writer_) writer_->wait();
  Resume resume;
  if (world_.rank() == 0) {
    for (const auto& found : list_checkpoints(options_.out_dir())) {
      if (found.step % options_.checkpoint().every() != 0) continue;
      try {
        resume.state = std::make_shared<const CheckpointReader>(
            open_checkpoint(found.path));
        resume.path = found.path;
        break;
      } catch (const CheckpointError& error) {
        log_warning("train", lockstep::text_of(error));
      }
    }
  }
  resume.path = world_.all_gather_text(resume.path)[0];
  if (resume.path.empty()) return std::nullopt;
  return resume;
}

std::optional<std::string> RunCheckpoints::finish(RunReport& report) {
  if (!resumed_from_.empty()) report.resumed_from = resumed_from_;
  report.snapshots = snapshots_.costs();
  if (!writer_) return std::nullopt;
  std::optional<std::string> failure;
  try {
    writer_->finish();
    if (best_writer_) best_writer_->finish();
  } catch (const CheckpointError& error) {
    failure = lockstep::text_of(error);
  }
  report.last_checkpoint = writer_->last();
  // A run that resumed from this folder and wrote nothing newer has its last
  // checkpoint there.
  if (report.last_checkpoint.empty() && is_resumed_here_) {
    report.last_checkpoint = resumed_from_;
  }
  report.checkpoints = writer_->costs();
  return failure;
}

std::string RunCheckpoints::last_in_words() {
  try {
    if (writer_) writer_->wait();
  } catch (const CommError&) {
    // The loss of a rank is not what is reported here.
  }
  const std::string& last =
      writer_ && !writer_->last().empty() ? writer_->last() : resumed_from_;
  return last.empty() ? "no checkpoint was written yet"
                      : "the last checkpoint is " + last;
}

}  // namespace lockstep::training
