// What is this rank's own in .grad: the part that the ranks have not summed
// yet, and the memory.
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::ddp {

using torch::Tensor;

// Whether what all ranks have in common stays the same in the weighted sum.
bool Reducer::sums_to_average() const {
  switch (options_.average()) {
    case GradientAverage::kNone:
      return false;
    case GradientAverage::kSamples:
      return true;
    case GradientAverage::kRanks:
      return !joining_ || !joining_->options.divide_by_initial_world_size() ||
             pass_->round.active.size() == static_cast<size_t>(world_.size());
  }
  return true;
}

// What was exchanged before and is added to: only this backward's part may be
// summed over the ranks.
void Reducer::set_aside() {
  pass_->kept.resize(parameters_.size());
  std::vector<size_t> mixed;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Tensor& gradient = parameters_[p].mutable_grad();
    if (!gradient.defined()) continue;
    if (is_unsynced_[p]) {
      if (is_mixed_[p] && gradient.any().item<bool>()) mixed.push_back(p);
      continue;
    }
    pass_->kept[p] = gradient.clone();
    gradient.reset();
  }
  if (mixed.empty()) return;
  give_up({.code = ErrorCode::kMixedAccumulation,
           .what = fmt::format("what rank {} added under no_sync() to a sum "
                               "over the ranks can't be told from it: {}",
                               world_.rank(), names_of(mixed)),
           .fix = "call zero_grad() in between, or average over the ranks"});
}

void Reducer::note_mixture(size_t p) {
  const Tensor& gradient = parameters_[p].grad();
  if (!gradient.defined() || !gradient.any().item<bool>()) {
    is_mixed_[p] = false;
  } else if (!is_unsynced_[p]) {
    is_mixed_[p] = true;
  }
}

// Autograd takes views for .grad, too: of a gradient that another parameter or
// the caller has as well. To add to one of them would change the others.
void Reducer::own_gradient(size_t p, const Tensor& incoming) {
  Tensor& gradient = parameters_[p].mutable_grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return;
  if (!incoming.defined() || !gradient.is_alias_of(incoming)) return;
  // It and `incoming` hold the memory: those two are no others.
  if (gradient.storage().use_count() <= 2) return;
  const torch::NoGradGuard no_grad;
  gradient = gradient.clone();
}

}  // namespace lockstep::ddp
