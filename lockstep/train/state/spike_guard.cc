#include "lockstep/train/state/spike_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <torch/types.h>

namespace lockstep::training {

double SpikeGuard::limit() const {
  const auto count = static_cast<double>(losses_.size());
  if (count < 2 || 2 * count < static_cast<double>(options_.window())) {
    return std::numeric_limits<double>::infinity();
  }
  const double mean =
      std::accumulate(losses_.begin(), losses_.end(), 0.0) / count;
  double squares = 0;
  for (const double loss : losses_) squares += (loss - mean) * (loss - mean);
  return mean + options_.sigma() * std::sqrt(squares / (count - 1));
}

void SpikeGuard::add(double loss) {
  losses_.push_back(loss);
  if (static_cast<int64_t>(losses_.size()) > options_.window()) {
    losses_.pop_front();
  }
}

OptimizerState SpikeGuard::state() const {
  torch::Tensor losses = torch::zeros({options_.window()}, torch::kFloat64);
  std::copy(losses_.begin(), losses_.end(), losses.data_ptr<double>());
  return {{"losses", losses},
          {"count", torch::tensor(static_cast<int64_t>(losses_.size()))}};
}

void SpikeGuard::load_state(const OptimizerState& state) {
  const torch::Tensor losses =
      state.at("losses").to(torch::kFloat64).contiguous();
  const auto count =
      std::clamp<int64_t>(state.at("count").item<int64_t>(), 0, losses.numel());
  const double* first = losses.data_ptr<double>();
  losses_.assign(first, first + count);
}

}  // namespace lockstep::training
