#include "lockstep/parallel/exchange/overlapped_sum.h"

#include <bit>
#include <utility>

namespace lockstep {

using torch::Tensor;

namespace {

// Large enough for the sockets, and small enough that little is left to send
// after the backward.
constexpr int64_t kBucketBytes = 4 << 20;

}  // namespace

bool OverlappedSum::can_sum(const std::vector<Tensor>& parameters,
                            int64_t shards, int64_t ranks, int64_t workers) {
  if (parameters.empty()) return false;
  if (workers != 1 || shards % ranks != 0) return false;
  if (!std::has_single_bit(static_cast<uint64_t>(shards / ranks))) return false;
  for (const Tensor& parameter : parameters) {
    const bool is_summed_as_it_is = parameter.scalar_type() == torch::kFloat ||
                                    parameter.scalar_type() == torch::kDouble;
    if (!is_summed_as_it_is || !parameter.is_cpu()) return false;
  }
  return true;
}

OverlappedSum::OverlappedSum(const World& world,
                             const std::vector<Tensor>& parameters)
    : buckets_(world, parameters, kBucketBytes),
      is_filled_(parameters.size()) {}

OverlappedSum::~OverlappedSum() { abandon(); }

void OverlappedSum::begin(const std::vector<PartialSum>& earlier) {
  earlier_ = &earlier;
  is_right_ = true;
  is_filled_.assign(is_filled_.size(), false);
  arrivals_.clear();
  buckets_.begin(/*weight=*/1);
}

void OverlappedSum::add(size_t p, const Tensor& gradient) {
  if (!has_begun()) return;
  // It may be on its way already.
  if (is_filled_[p]) {
    is_right_ = false;
    return;
  }
  arrivals_.push_back(p);
  fill(p, gradient);
}

void OverlappedSum::fill(size_t p, const Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  Tensor& view = buckets_.view(p);
  // From the last shard to the first: neighbours in the tree, as each is as
  // large as all after it.
  Tensor sum = gradient;
  for (auto partial = earlier_->rbegin(); partial != earlier_->rend();
       ++partial) {
    const Tensor& left = partial->gradients[p].tensor();
    if (!left.defined()) continue;
    if (sum.defined()) {
      at::add_out(view, left, sum);
      sum = view;
    } else {
      sum = left;
    }
  }
  if (!sum.defined()) {
    view.fill_(-0.0);
  } else if (!sum.is_same(view)) {
    view.copy_(sum);
  }
  is_filled_[p] = true;
  buckets_.mark_ready(p);
}

void OverlappedSum::finish(const std::vector<OwnedGradient>& gradients) {
  // In the order of the buckets: the first may go while the next is filled.
  for (const auto& bucket : buckets_.assignment()) {
    for (const size_t p : bucket) {
      if (!is_filled_[p]) fill(p, gradients[p].tensor());
    }
  }
  earlier_ = nullptr;
}

void OverlappedSum::wait() { buckets_.wait(); }

void OverlappedSum::follow_arrivals() {
  if (std::exchange(follows_arrivals_, true)) return;
  buckets_.rebuild_buckets(/*root=*/0, arrivals_);
}

void OverlappedSum::abandon() noexcept {
  try {
    if (has_begun()) {
      earlier_ = nullptr;
      buckets_.mark_all_ready();
    }
    buckets_.wait();
  } catch (const std::exception&) {
    // The step has an error already, and the next one will find this.
  }
}

OwnedGradient OverlappedSum::sum(size_t p) const {
  return OwnedGradient::in(buckets_.view(p));
}

}  // namespace lockstep
