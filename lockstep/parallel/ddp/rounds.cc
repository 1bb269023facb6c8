#include "lockstep/parallel/ddp/rounds.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::ddp {

using torch::Tensor;

Round Rounds::next(int64_t samples) {
  if (counts_samples()) return agree(true, samples);
  return {.weight = 1.0 / world_.size(), .active = {}};
}

bool Rounds::sums_to_average(const Round& round) const {
  return average_ == GradientAverage::kSamples || !joining_ ||
         !joining_->options.divide_by_initial_world_size() ||
         round.active.size() == static_cast<size_t>(world_.size());
}

Round Rounds::agree(bool is_active, int64_t samples) {
  // (2): whether this rank has inputs, and its number of samples.
  const std::vector<int64_t> message{is_active, samples};
  const auto messages =
      world_.all_gather(torch::tensor(message, torch::kInt64).to(device_))
          .result();
  Round round{.active = {}};
  int64_t total = 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const Tensor from_rank = messages[static_cast<size_t>(rank)].cpu();
    const auto* numbers = from_rank.const_data_ptr<int64_t>();
    if (numbers[0] != 0) round.active.push_back(rank);
    total += numbers[1];
  }
  const auto active = static_cast<double>(round.active.size());
  // The root is the highest rank that has inputs, as in PyTorch.
  if (active > 0 && joining_) round.root = round.active.back();
  const bool by_all =
      !joining_ || joining_->options.divide_by_initial_world_size();
  if (average_ == GradientAverage::kRanks) {
    round.weight = 1 / (by_all ? world_.size() : std::max(active, 1.0));
  } else if (total > 0) {
    round.weight = static_cast<double>(samples) / static_cast<double>(total);
  } else {
    // A step without any samples still has a loss, for example one that depends
    // only on the parameters. Use its mean over the ranks then.
    round.weight = 1 / std::max(active, 1.0);
  }
  if (joining_) note_active(round.active);
  return round;
}

void Rounds::note_active(const std::vector<int>& active) {
  if (active.empty()) return;
  const bool are_all = active.size() == static_cast<size_t>(world_.size());
  if (!are_all && joining_->options.throw_on_early_termination()) {
    int first = 0;
    while (std::find(active.begin(), active.end(), first) != active.end()) {
      ++first;
    }
    joining_->is_ended = true;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kUnevenInputs,
         .what = fmt::format("rank {} has no inputs left, others have", first),
         .fix = "end the epoch on every rank here, or join() without "
                "throw_on_early_termination"});
  }
  joining_->last_active = active;
}

}  // namespace lockstep::ddp
