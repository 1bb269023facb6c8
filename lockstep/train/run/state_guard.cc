#include "lockstep/train/run/state_guard.h"

#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/log.h"

namespace lockstep::train {
namespace {

std::vector<int> ranks_other_than(const std::vector<std::string>& digests,
                                  const std::string& digest) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (digests[rank] != digest) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

std::vector<int> minority(const std::vector<std::string>& digests) {
  std::map<std::string, size_t> counts;
  for (const std::string& digest : digests) ++counts[digest];
  for (const auto& [digest, count] : counts) {
    if (2 * count > digests.size()) return ranks_other_than(digests, digest);
  }
  return {};
}

// Returns "rank 1" or "shards 2, 3".
template <class Number>
std::string names_of(const char* what, const std::vector<Number>& numbers) {
  return fmt::format("{}{} {}", what, numbers.size() == 1 ? "" : "s",
                     fmt::join(numbers, ", "));
}

constexpr const char* kCause =
    "a bit changed in its memory, or its processor computes wrong results";
constexpr int kMostTimes = 2;

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
  history_.times_wrong.resize(static_cast<size_t>(world.size()));
}

void StateGuard::note_wrong(const std::vector<int>& ranks, int64_t step) {
  bool is_again = false;
  for (const int rank : ranks) {
    const int times = ++history_.times_wrong[static_cast<size_t>(rank)];
    if (rank == world_.rank()) is_again = times >= kMostTimes;
  }
  if (!is_again) return;
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
  int& times = history_.times_wrong[static_cast<size_t>(world_.rank())];
  if (++times >= kMostTimes && world_.size() > 1) end_of_rank(what);
}

void StateGuard::name_who_was_wrong(const Divergence& earlier,
                                    const std::string& digest) {
  const auto wrong = ranks_other_than(earlier.digests, digest);
  if (world_.rank() == 0) {
    log_warning("train",
                fmt::format("step {} was repeated: {} had been wrong; {}",
                            earlier.step, names_of("rank", wrong), kCause));
  }
  note_wrong(wrong, earlier.step);
}

void StateGuard::compare(int64_t step, const std::string& digest) {
  const auto digests = world_.all_gather_text(digest);
  const bool is_repeated = history_.last && history_.last->step == step &&
                           history_.last->digests.size() == digests.size();
  if (ranks_other_than(digests, digests[0]).empty()) {
    if (!is_repeated) return;
    const Divergence earlier = *std::exchange(history_.last, std::nullopt);
    if (earlier.wrong.empty()) name_who_was_wrong(earlier, digest);
    return;
  }
  history_.last = {
      .step = step, .digests = digests, .wrong = minority(digests)};
  const std::vector<int>& wrong = history_.last->wrong;
  note_wrong(wrong, step);
  throw StateDiverged(fmt::format(
      "after step {} {}", step,
      wrong.empty()
          ? std::string(
                "the ranks have different parameters or optimizer state; this "
                "step is repeated to find which rank is wrong")
          : fmt::format("parameters or optimizer state of {} differ from those "
                        "of the other ranks: {}",
                        names_of("rank", wrong), kCause)));
}

}  // namespace lockstep::train
