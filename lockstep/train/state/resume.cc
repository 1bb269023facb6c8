#include "lockstep/train/state/resume.h"

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/train/state/run_settings.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;

bool is_same(const fs::path& one, const fs::path& other) {
  std::error_code ignored;
  return fs::equivalent(one, other, ignored);
}

// Throws if out_dir has checkpoints of another run. They would be mixed with
// ours, and the next --resume auto would take them for ours.
void check_out_dir(const TrainOptions& options, const std::string& from) {
  const auto found = list_checkpoints(options.out_dir());
  if (options.out_dir().empty() || found.empty()) return;
  const std::string& newest = found.front().path;
  const auto refuse = [&](const std::string& has, const char* fix) {
    throw CheckpointError({.code = ErrorCode::kResumeConflict,
                           .what = options.out_dir() + " has " + has,
                           .got = newest,
                           .fix = fix});
  };
  if (from.empty()) {
    refuse("checkpoints of an earlier run",
           "continue it (--resume auto), choose another --out-dir, or remove "
           "them");
  }
  const fs::path run = fs::path(from).parent_path();
  if (!is_same(run.empty() ? "." : run, options.out_dir())) {
    refuse("checkpoints of another run than " + from,
           "continue that run (--resume auto), choose another --out-dir, or "
           "remove them");
  }
  // A checkpoint was named that is not the newest.
  if (is_same(from, options.checkpoint().resume()) && !is_same(from, newest)) {
    refuse("later checkpoints than " + from,
           "remove them, or choose another --out-dir");
  }
}

// Returns the checkpoint to resume; nothing to start at the beginning.
std::optional<CheckpointReader> find(const TrainOptions& options) {
  if (options.checkpoint().resume().empty()) return std::nullopt;
  if (options.checkpoint().resume() != "auto")
    return open_checkpoint(options.checkpoint().resume());
  if (list_checkpoints(options.out_dir()).empty()) return std::nullopt;
  return open_checkpoint(options.out_dir());
}

void check_kind(const Task& task, const Resume& resume) {
  if (!resume.info.run) {
    throw CheckpointError(
        {.code = ErrorCode::kCheckpointDamaged,
         .what = resume.path + " does not say at which step its run was",
         .expected = "a checkpoint of `lockstep train`",
         .got = "one that another program saved",
         .fix = "start from its weights: --init-from " + resume.path});
  }
  const std::string expected = task.model().at("name");
  const auto name = resume.info.model.find("name");
  const std::string found =
      name != resume.info.model.end() ? name->second : "a model without a name";
  if (found == expected) return;
  throw CheckpointError({.code = ErrorCode::kResumeConflict,
                         .what = resume.path + " has another model",
                         .expected = expected,
                         .got = found,
                         .fix = "give --model " + found});
}

// Returns the newest snapshot of any node. All ranks that have it read it.
std::optional<Resume> find_snapshot(const ProcessGroup& world,
                                    const std::string& identity) {
  const auto own = Snapshot::newest(identity);
  // Step, newline and manifest; "" without a snapshot.
  const auto texts = world.all_gather_text(
      own ? fmt::format(
                "{}\n{}", own->info().step,
                format_manifest(
                    {.info = own->info(), .files = {}, .not_finite = {}}))
          : "");
  Resume resume;
  int64_t newest = -1;
  for (int rank = 0; rank < world.size(); ++rank) {
    const std::string& text = texts[static_cast<size_t>(rank)];
    if (text.empty() || std::stoll(text) <= newest) continue;
    newest = std::stoll(text);
    resume.root = rank;
  }
  if (newest < 0) return std::nullopt;
  const std::string& text = texts[static_cast<size_t>(resume.root)];
  resume.info =
      parse_manifest("the snapshot of rank " + std::to_string(resume.root),
                     std::string_view(text).substr(text.find('\n') + 1))
          .info;
  const bool has_it = own && own->info().step == newest;
  if (has_it) resume.state = own;
  return resume;
}

[[noreturn]] void refuse_changes(const std::string& changes) {
  throw CheckpointError(
      {.code = ErrorCode::kResumeConflict,
       .what = "the run would not continue as it was: " + changes,
       .fix = "give the options and the data it was started with, or "
              "--allow-changes to continue with others"});
}

bool has_later_checkpoint(const TrainOptions& options,
                          const ProcessGroup& world, int64_t step) {
  bool is_later = false;
  if (world.rank() == 0 && options.checkpoint().resume() == "auto") {
    const auto found = list_checkpoints(options.out_dir());
    is_later = !found.empty() && found.front().step > step;
  }
  return world.all_gather_text(is_later ? "later" : "")[0] == "later";
}

}  // namespace

std::optional<Resume> find_resume(const Task& task, const TrainOptions& options,
                                  const ProcessGroup& world,
                                  const std::string& identity) {
  auto snapshot = find_snapshot(world, identity);
  if (snapshot && !has_later_checkpoint(options, world, snapshot->info.step)) {
    return snapshot;
  }
  Resume resume;
  std::string manifest;
  if (world.rank() == 0) {
    auto found = find(options);
    check_out_dir(options, found ? found->path() : "");
    if (found) {
      resume.path = found->path();
      manifest = read_manifest_text(found->path());
      resume.state =
          std::make_shared<const CheckpointReader>(*std::move(found));
    }
  }
  resume.path = world.all_gather_text(resume.path)[0];
  if (resume.path.empty()) return std::nullopt;
  manifest = world.all_gather_text(manifest)[0];
  resume.info = parse_manifest(resume.path, manifest).info;
  check_kind(task, resume);
  return resume;
}

Settings saved_settings(const TrainOptions& options, const ProcessGroup& world,
                        const std::optional<Resume>& resume) {
  if (!resume) return {};
  Settings settings = resume->info.run->settings;
  if (!resume->is_snapshot() || options.shards() != 0) return settings;
  const int64_t ranks = world.size();
  const int64_t saved = saved_number(settings, "shards").value_or(ranks);
  if (saved >= ranks) return settings;
  if (world.rank() == 0) {
    log_warning("train",
                fmt::format("{} became {}: the run continues, but with other "
                            "bits; set --shards to the largest number of ranks",
                            counted(saved, "shard"), ranks));
  }
  settings.erase("shards");
  return settings;
}

namespace {

// Returns the number of batches of an epoch in the run that wrote `at`; nothing
// if it was in its first epoch. Throws CheckpointError if no number fits.
std::optional<int64_t> saved_batches(const RunPosition& at,
                                     const std::string& path) {
  const bool is_first = at.epoch == 0;
  const int64_t batches =
      is_first ? at.batch + 1 : (at.step - at.batch) / at.epoch;
  const bool is_possible = at.batch < batches &&
                           at.step / batches == at.epoch &&
                           at.step % batches == at.batch;
  if (!is_possible) {
    refuse_damaged(path + " contradicts itself",
                   "a step that is the given batch of the given epoch",
                   fmt::format("step {}, epoch {}, batch {}", at.step, at.epoch,
                               at.batch));
  }
  return is_first ? std::nullopt : std::optional(batches);
}

void check_samples(const RunPosition& at, const Resume& resume,
                   int64_t batch_size) {
  const int64_t most_batches =
      at.samples == 0 ? 0 : (at.samples - 1) / batch_size + 1;
  if (most_batches <= at.batch) return;
  refuse_damaged(
      resume.path + " contradicts itself",
      fmt::format("at most {} batches of {} samples", at.batch, batch_size),
      fmt::format("{} samples", at.samples));
}

}  // namespace

RunPosition position_in_epochs(const TrainOptions& options, const Plan& plan,
                               const Resume& resume, int64_t batches,
                               int64_t total_steps) {
  RunPosition at = resume.info.run->position;
  if (at.step != resume.info.step) {
    refuse_damaged(resume.path + " contradicts itself",
                   fmt::format("step {}", resume.info.step),
                   fmt::format("a position at step {}", at.step));
  }
  const auto before = saved_batches(at, resume.path);
  // The batch size may change on resume with --allow-changes.
  check_samples(at, resume,
                saved_number(resume.info.run->settings, "batch_size")
                    .value_or(options.batch_size()));
  if (at.epoch != at.step / batches || at.batch != at.step % batches) {
    const std::string change =
        before ? fmt::format("{} in an epoch of the checkpoint, {} now",
                             counted(*before, "batch", "batches"), batches)
               : fmt::format(
                     "step {} in the first epoch of the checkpoint, "
                     "epochs of {} now",
                     at.step, counted(batches, "batch", "batches"));
    if (!options.checkpoint().allow_changes()) refuse_changes(change);
    // The sums are those of other batches.
    at = {.step = at.step,
          .epoch = at.step / batches,
          .batch = at.step % batches};
    if (plan.rank == 0) {
      log_warning("train",
                  fmt::format("{}: the run continues with batch {} of epoch {} "
                              "(counted from 0)",
                              change, at.batch, at.epoch));
    }
  }
  if (options.checkpoint().allow_changes() && !resume.is_snapshot()) {
    at.is_ended = false;
  }
  if (at.step > total_steps && plan.rank == 0) {
    log_warning("train", fmt::format("{} is at step {} already, beyond the end "
                                     "of this run at step {}",
                                     resume.path, at.step, total_steps));
  }
  return at;
}

namespace {

/// A setting that has changed since the checkpoint was written.
struct Difference {
  std::string name;
  std::string text;  ///< "lr: 0.02 in the checkpoint, 0.1 now"
};

constexpr size_t kShown = 100;  // letters shown of a value in a file

std::string value_of(const Settings& settings, const std::string& name) {
  const auto found = settings.find(name);
  return found == settings.end() ? "nothing" : found->second;
}

std::vector<Difference> differences(const Settings& saved,
                                    const Settings& now) {
  Settings all = saved;
  all.insert(now.begin(), now.end());
  std::vector<Difference> found;
  for (const auto& [name, value] : all) {
    const std::string before = value_of(saved, name);
    const std::string after = value_of(now, name);
    if (before == after) continue;
    found.push_back(
        {.name = name,
         .text = fmt::format("{}: {} in the checkpoint, {} now", name,
                             before.substr(0, kShown), after)});
  }
  return found;
}

}  // namespace

void check_settings(const TrainOptions& options, const Plan& plan,
                    const RunRecord& saved, const Settings& now,
                    const Settings& versions) {
  std::vector<std::string> changes, notes;
  for (const auto& [name, text] : differences(saved.settings, now)) {
    if (name == kDataDir) continue;
    // An earlier version saved nothing about data without a fingerprint.
    if (name == kDataSha256 && value_of(saved.settings, name).empty()) continue;
    if (name == kPowerSgdRanks) {
      notes.push_back(text);
    } else if (name != kTotalSteps) {
      changes.push_back(text);
    } else if (now.contains(kDependsOnTotalSteps)) {
      notes.push_back(text);
    }
  }
  if (!changes.empty() && !options.checkpoint().allow_changes()) {
    refuse_changes(fmt::format("{}", fmt::join(changes, "; ")));
  }
  for (const auto& [name, text] : differences(saved.versions, versions)) {
    notes.push_back(text);
  }
  notes.insert(notes.end(), changes.begin(), changes.end());
  if (notes.empty() || plan.rank != 0) return;
  log_warning("train", fmt::format("the run continues, but with other bits: {}",
                                   fmt::join(notes, "; ")));
}

}  // namespace lockstep::training
