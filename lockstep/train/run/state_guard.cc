#include "lockstep/train/run/state_guard.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include "lockstep/base/log.h"
#include "lockstep/base/minority.h"

namespace lockstep::training {
namespace {

constexpr const char* kCause =
    "a bit changed in its memory, or its processor computes wrong results";
constexpr int kMaxTimes = 2;
// A rank that is often wrong is found much earlier.
constexpr int kMaxReturns = 5;
// Comparing each step takes several percent of its time.
constexpr int64_t kWatchedComparisons = 10;

/// Ranks whose digest is known, compared with the right one.
struct Verdict {
  std::vector<int> right;
  std::vector<int> wrong;

  Verdict(const std::vector<std::string>& digests,
          const std::string& right_digest) {
    for (size_t rank = 0; rank < digests.size(); ++rank) {
      if (digests[rank].empty()) continue;
      (digests[rank] == right_digest ? right : wrong)
          .push_back(static_cast<int>(rank));
    }
  }
  /// Returns the rank that was wrong, or -1 if it can't be known. If no rank
  /// was right, then the change has spread from any of them. If several were
  /// wrong, then one of them may have sent wrong data to the others.
  int culprit(size_t ranks) const {
    return wrong.size() == 1 && right.size() + 1 == ranks ? wrong[0] : -1;
  }
};

// Returns "rank 1" or "shards 2, 3".
template <class Number>
std::string names_of(const char* what, const std::vector<Number>& numbers) {
  return fmt::format("{}{} {}", what, numbers.size() == 1 ? "" : "s",
                     fmt::join(numbers, ", "));
}

[[noreturn]] void end_of_rank(const std::string& what) {
  throw TrainError({.code = ErrorCode::kParametersDiffer,
                    .what = what + ", and not for the first time",
                    .fix = "take its host out of the job: its memory or "
                           "processor is faulty"});
}

}  // namespace

int64_t steps_between_comparisons(const TrainOptions& options,
                                  const ProcessGroup& world) {
  const bool has_copies = world.size() > 1 && !world.can_share_memory() &&
                          !options.communication().is_local();
  return has_copies ? options.verify().every() : 0;
}

StateGuard::StateGuard(const ProcessGroup& world, int64_t every,
                       GuardHistory& history)
    : world_(world), every_(every), history_(history) {
  if (!is_on()) return;
  const auto own =
      torch::tensor({history.farthest, static_cast<int64_t>(history.returns),
                     history.watched_until,
                     history.different ? history.different->step : int64_t{-1}},
                    torch::kLong);
  const auto agreed = torch::stack(world.all_gather(own).result()).amax(0);
  const auto* values = agreed.const_data_ptr<int64_t>();
  history.farthest = values[0];
  history.returns = static_cast<int>(values[1]);
  history.watched_until = values[2];
  repeated_ = values[3];
}

bool StateGuard::is_due(int64_t step) const {
  return is_on() && (step % every_ == 0 || step == repeated_ ||
                     step <= history_.watched_until);
}

void StateGuard::blame(int rank, int64_t step) {
  if (rank != world_.rank() || ++history_.times_wrong < kMaxTimes) return;
  end_of_rank(fmt::format(
      "rank {} had different parameters from the other ranks at step {}",
      world_.rank(), step));
}

void StateGuard::note_repaired(int64_t step,
                               const std::vector<int64_t>& shards) {
  const std::string what =
      fmt::format("rank {} computed wrong gradients of {} at step {}",
                  world_.rank(), names_of("shard", shards), step);
  log_warning("train", fmt::format("{}: two of three computations agree on "
                                   "other gradients, which were used; {}",
                                   what, kCause));
  if (++history_.times_wrong >= kMaxTimes && world_.size() > 1) {
    end_of_rank(what);
  }
}

// Each rank brings what it remembers, because it may have had another number
// when the ranks differed.
StateGuard::Evidence StateGuard::gather(int64_t step,
                                        const std::string& digest) const {
  const auto at_step = [&](const std::optional<GuardHistory::State>& state) {
    return state && state->step == step ? state->digest : std::string();
  };
  Evidence evidence;
  for (const std::string& text : world_.all_gather_text(
           fmt::format("{}\n{}\n{}", digest, at_step(history_.different),
                       at_step(history_.common)))) {
    const size_t first = text.find('\n');
    const size_t second = text.find('\n', first + 1);
    evidence.digests.push_back(text.substr(0, first));
    evidence.earlier.push_back(text.substr(first + 1, second - first - 1));
    if (evidence.right.empty()) evidence.right = text.substr(second + 1);
  }
  return evidence;
}

void StateGuard::compare(int64_t step, const std::string& digest) {
  const Evidence evidence = gather(step, digest);
  const auto& digests = evidence.digests;
  const bool is_equal =
      std::all_of(digests.begin(), digests.end(),
                  [&](const std::string& one) { return one == digests[0]; });
  if (!is_equal) go_back(step, evidence);
  history_.common = {.step = step, .digest = digest};
  if (step >= history_.farthest) {
    history_.farthest = -1;
    history_.returns = 0;
  }
  const bool is_repeated =
      std::any_of(evidence.earlier.begin(), evidence.earlier.end(),
                  [](const std::string& earlier) { return !earlier.empty(); });
  if (is_repeated) explain(step, evidence);
}

void StateGuard::explain(int64_t step, const Evidence& evidence) {
  history_.different.reset();
  repeated_ = -1;
  const size_t ranks = evidence.earlier.size();
  const Verdict verdict(evidence.earlier, evidence.digests[0]);
  const int culprit = verdict.culprit(ranks);
  std::string who;
  if (culprit >= 0) {
    who = fmt::format("rank {} had been wrong; {}", culprit, kCause);
  } else if (verdict.wrong.size() == ranks) {
    history_.watched_until =
        std::max(history_.watched_until, step + kWatchedComparisons * every_);
    who = fmt::format(
        "all ranks had been wrong, so it can't be known in which of them a bit "
        "changed. Such a change reaches all ranks with the next gradients. "
        "Each step is compared until step {}, to find a rank that is wrong "
        "again",
        history_.watched_until);
  } else if (verdict.wrong.empty()) {
    who = "a rank had been wrong that was replaced since then";
  } else {
    who = fmt::format(
        "{} had been wrong, but it can't be known where a bit changed, because "
        "{}",
        names_of("rank", verdict.wrong),
        verdict.wrong.size() + verdict.right.size() < ranks
            ? "another rank was replaced since then"
            : "one of them may have sent wrong data to the others");
  }
  if (world_.rank() == 0) {
    log_warning("train", fmt::format("step {} was repeated: {}", step, who));
  }
  if (culprit >= 0) blame(culprit, step);
}

void StateGuard::go_back(int64_t step, const Evidence& evidence) {
  history_.farthest = std::max(history_.farthest, step);
  if (++history_.returns > kMaxReturns) {
    throw TrainError(
        {.code = ErrorCode::kParametersDiffer,
         .what = fmt::format("the ranks had different parameters or optimizer "
                             "state {} times before step {} was done, and it "
                             "can't be known which rank is wrong",
                             history_.returns, history_.farthest + 1),
         .expected = "the same bits on all ranks",
         .fix = "test the memory and the processors of the hosts, or train on "
                "other hosts"});
  }
  int culprit = -1;
  if (!evidence.right.empty()) {
    culprit = Verdict(evidence.digests, evidence.right)
                  .culprit(evidence.digests.size());
  } else if (const auto few = minority(evidence.digests); few.size() == 1) {
    culprit = few[0];
  }
  if (culprit >= 0) {
    history_.different.reset();
    blame(culprit, step);
    throw StateDiverged(
        fmt::format("after step {} parameters or optimizer state of rank {} "
                    "differ from those of the other ranks: {}",
                    step, culprit, kCause));
  }
  history_.different = {
      .step = step,
      .digest = evidence.digests[static_cast<size_t>(world_.rank())]};
  throw StateDiverged(
      fmt::format("after step {} the ranks have different parameters or "
                  "optimizer state; this step is repeated to find which rank "
                  "is wrong",
                  step));
}

}  // namespace lockstep::training
