// Uneven inputs: ranks that have none left answer those that have.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::ddp {

using torch::Tensor;

Reducer::Round Reducer::agree(bool is_active, int64_t samples) {
  const std::vector<int64_t> own{is_active, samples};
  const auto all =
      world_.all_gather(torch::tensor(own, torch::kInt64).to(device_));
  Round round{.active = {}};
  int64_t total = 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const Tensor theirs = all[static_cast<size_t>(rank)].cpu();
    const auto* message = theirs.const_data_ptr<int64_t>();
    if (message[0] != 0) round.active.push_back(rank);
    total += message[1];
  }
  const auto active = static_cast<double>(round.active.size());
  // As in torch the highest of those that have inputs.
  if (active > 0 && joining_) round.root = round.active.back();
  const bool by_all =
      !joining_ || joining_->options.divide_by_initial_world_size();
  switch (options_.average()) {
    case GradientAverage::kNone:
      break;
    case GradientAverage::kSamples:
      // A step without any samples still has a loss, of the parameters alone
      // say: its mean over the ranks is then the only one there is.
      round.weight =
          total > 0 ? static_cast<double>(samples) / static_cast<double>(total)
                    : 1 / std::max(active, 1.0);
      break;
    case GradientAverage::kRanks:
      round.weight = 1 / (by_all ? world_.size() : std::max(active, 1.0));
      break;
  }
  if (joining_) note_active(round.active);
  return round;
}

void Reducer::note_active(const std::vector<int>& active) {
  if (active.empty()) return;
  const bool is_all = active.size() == static_cast<size_t>(world_.size());
  if (!is_all && joining_->options.throw_on_early_termination()) {
    int first = 0;
    while (std::find(active.begin(), active.end(), first) != active.end()) {
      ++first;
    }
    joining_->is_ended = true;
    throw InvalidArgument(
        "ddp",
        {.code = ErrorCode::kUnevenInputs,
         .what = fmt::format("rank {} has no inputs left, others have", first),
         .fix = "end the epoch on every rank here, or join() without "
                "throw_on_early_termination"});
  }
  joining_->last_active = active;
}

void Reducer::join(const std::function<void()>& steps,
                   const JoinOptions& options) {
  check_usable();
  if (joining_) {
    throw InvalidArgument("ddp", {.code = ErrorCode::kUnevenInputs,
                                  .what = "join() within join()",
                                  .fix = "call it once around all steps"});
  }
  struct Leave {
    std::optional<Joining>& joining;
    ~Leave() { joining.reset(); }
  } const leave{joining_};
  joining_ = Joining{.options = options, .last_active = {}};
  try {
    steps();
    for (Round round = agree(false, 0); !round.active.empty();
         round = agree(false, 0)) {
      shadow(round);
    }
  } catch (const std::exception& error) {
    // Ended by agreement, all ranks know.
    if (joining_->is_ended || !failure_.empty()) throw;
    failure_ = fmt::format("rank {} left join() with an exception: {}",
                           world_.rank(), error.what());
    world_.fail("[ddp] " + failure_);
    throw;
  }
  const std::vector<int>& last = joining_->last_active;
  // Those that had no inputs did not update.
  if (!last.empty() && last.size() < static_cast<size_t>(world_.size())) {
    broadcast(world_, module_.parameters, last.back());
    broadcast(world_, module_.buffers, last.back());
  }
}

void Reducer::shadow(const Round& round) {
  {
    const std::lock_guard lock(mutex_);
    if (options_.static_graph() && expected_.empty()) {
      give_up({.code = ErrorCode::kUnevenInputs,
               .what = fmt::format("rank {} has no inputs in the first step of "
                                   "a static graph",
                                   world_.rank()),
               .fix = "make that step with inputs on every rank"});
    }
    pass_ = new_pass(round);
    pass_->is_shadow = true;
    pass_->awaited.assign(parameters_.size(), 0);
    if (!options_.static_graph()) send_buffers();
    for (size_t p = 0; p < parameters_.size(); ++p) arrive(p, false);
  }
  close_pass();
}

}  // namespace lockstep::ddp
