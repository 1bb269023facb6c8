#include "lockstep/parallel/exchange/overlapped_sum.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/tree_sum.h"

namespace lockstep {

using torch::Tensor;

namespace {

// Large enough for the sockets, and small enough to leave little to send after
// the backward.
constexpr int64_t kBucketBytes = 4 << 20;

/// Delays the reuse of the gradient's memory. On a GPU the current stream may
/// still have to read it, and the memory goes back to the stream that it was
/// allocated on.
void free_after_use(OwnedGradient gradient) {
  if (!gradient.defined() || gradient.tensor().is_cpu()) return;
  const torch::Device device = gradient.tensor().device();
  gradient.tensor().record_stream(
      c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace

bool OverlappedSum::can_sum(const std::vector<Tensor>& parameters,
                            int64_t shards, int64_t ranks, int64_t workers) {
  if (parameters.empty()) return false;
  if (workers != 1 || shards % ranks != 0) return false;
  if (!std::has_single_bit(static_cast<uint64_t>(shards / ranks))) return false;
  for (const Tensor& parameter : parameters) {
    const bool is_summed_as_it_is = parameter.scalar_type() == torch::kFloat ||
                                    parameter.scalar_type() == torch::kDouble;
    if (!is_summed_as_it_is) return false;
    if (parameter.device() != parameters[0].device()) return false;
  }
  return true;
}

OverlappedSum::OverlappedSum(const World& world,
                             const std::vector<Tensor>& parameters,
                             const Partition& partition, ZeroStage zero,
                             const CommHook& hook)
    : world_(world),
      parameters_(parameters),
      partition_(partition),
      zero_(zero),
      is_filled_(parameters.size()),
      has_gradient_(parameters.size()),
      has_come_(parameters.size()),
      sums_(parameters.size()),
      kept_(parameters.size()),
      buckets_(
          world, parameters, kBucketBytes,
          hook ? GradientBuckets::LargeSum()
               : [this](size_t p, const Tensor& elements) {
                   sum_large(p, elements);
                 }) {
  if (hook) buckets_.set_hook(hook);
  if (zero_ != ZeroStage::kGradients) return;
  // Send from the first step on, because this stage must never hold all
  // gradients at once.
  is_early_ = true;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!partition_.is_cut(p)) continue;
    kept_[p] = partition_.zeros(p, parameters_[p]);
  }
}

OverlappedSum::~OverlappedSum() { abandon(); }

void OverlappedSum::begin(const std::vector<PartialSum>& earlier) {
  earlier_ = &earlier;
  is_right_ = true;
  has_come_.assign(has_come_.size(), false);
  arrivals_.clear();
  pending_.reset();
  if (is_early_) start(earlier);
}

void OverlappedSum::start(const std::vector<PartialSum>& earlier) {
  earlier_ = &earlier;
  is_filled_.assign(is_filled_.size(), false);
  has_gradient_.assign(has_gradient_.size(), false);
  for (OwnedGradient& sum : sums_) sum = {};
  is_sending_ = true;
  buckets_.begin(/*weight=*/1);
}

void OverlappedSum::add(size_t p, const Tensor& leaf) {
  if (earlier_ == nullptr) return;
  if (pending_ && pending_->p == p) return;  // not taken yet
  if (has_come_[p]) {
    is_right_ = false;
    return;
  }
  has_come_[p] = true;
  arrivals_.push_back(p);
  if (!is_early_) return;
  take_pending();
  // The gradient can't be taken yet: autograd still holds the tensor that it
  // added to .grad.
  pending_ = {.p = p, .leaf = leaf};
}

void OverlappedSum::take_pending() {
  if (!pending_) return;
  const Pending come = *std::exchange(pending_, std::nullopt);
  Tensor gradient = std::move(come.leaf.mutable_grad());
  come.leaf.mutable_grad().reset();
  fill(come.p, OwnedGradient::take(std::move(gradient), parameters_[come.p]));
}

void OverlappedSum::fill(size_t p, OwnedGradient gradient) {
  const torch::NoGradGuard no_grad;
  if (buckets_.is_apart(p)) {
    fill_apart(p, std::move(gradient));
  } else {
    fill_bucket(p, gradient.tensor());
  }
  is_filled_[p] = true;
  buckets_.mark_ready(p);
}

// Adds from the last shard to the first. That is the order of the tree, because
// each partial sum has as many shards as all later ones together.
void OverlappedSum::fill_bucket(size_t p, const Tensor& gradient) {
  Tensor& view = buckets_.view(p);
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
  has_gradient_[p] = sum.defined();
  if (!sum.defined()) {
    view.fill_(-0.0);
  } else if (!sum.is_same(view)) {
    view.copy_(sum);
  }
}

void OverlappedSum::fill_apart(size_t p, OwnedGradient gradient) {
  if (zero_ == ZeroStage::kGradients && bytes_to_send_ > kMostBytesToSend) {
    buckets_.settle();
  }
  OwnedGradient& sum = sums_[p];
  sum = std::move(gradient);
  for (auto partial = earlier_->rbegin(); partial != earlier_->rend();
       ++partial) {
    const Tensor& left = partial->gradients[p].tensor();
    if (!left.defined()) continue;
    if (sum.defined()) {
      Tensor in_place = sum.tensor();
      at::add_out(in_place, left, in_place);
    } else {
      sum = OwnedGradient::in(left.clone());
    }
  }
  has_gradient_[p] = sum.defined();
  if (!sum.defined()) {
    sum = OwnedGradient::in(
        torch::empty_like(parameters_[p].detach()).fill_(-0.0));
  }
  bytes_to_send_ += static_cast<int64_t>(sum.tensor().nbytes());
  buckets_.sum_in_place(p, sum.tensor());
}

void OverlappedSum::sum_large(size_t p, const Tensor& elements) {
  if (zero_ == ZeroStage::kNone) {
    tree_all_reduce(world_, elements, tree_sum_of(world_));
  } else {
    partition_.reduce_scatter(p, elements);
  }
  if (kept_[p].defined()) {
    const auto size = static_cast<int64_t>(elements.element_size());
    for (const ByteRange& own : partition_.own_bytes(p)) {
      const int64_t begin = own.begin / size;
      const int64_t count = (own.end - own.begin) / size;
      optim::memory_view(kept_[p], begin, count)
          .copy_(elements.narrow(0, begin, count));
    }
    free_after_use(std::exchange(sums_[p], {}));
  }
  bytes_to_send_ -= static_cast<int64_t>(elements.nbytes());
}

void OverlappedSum::finish(std::vector<OwnedGradient>& gradients) {
  if (is_early_) {
    pending_.reset();  // its gradient is in `gradients`
    fill_rest(gradients);
  }
  earlier_ = nullptr;
}

void OverlappedSum::fill_rest(std::vector<OwnedGradient>& gradients) {
  // In the order of the buckets, so that the first can be sent while the next
  // is filled.
  for (const auto& bucket : buckets_.assignment()) {
    for (const size_t p : bucket) {
      if (!is_filled_[p]) fill(p, std::exchange(gradients[p], {}));
    }
  }
}

void OverlappedSum::wait() {
  if (!std::exchange(is_sending_, false)) return;
  buckets_.wait();
}

void OverlappedSum::sum_after(std::vector<PartialSum> partials) {
  std::vector<OwnedGradient> last(parameters_.size());
  if (!partials.empty()) {
    last = std::move(partials.back().gradients);
    partials.pop_back();
  }
  start(partials);
  fill_rest(last);
  earlier_ = nullptr;
  wait();
}

void OverlappedSum::follow_arrivals() {
  if (std::exchange(follows_arrivals_, true)) return;
  buckets_.rebuild_buckets(/*root=*/0, arrivals_);
}

void OverlappedSum::abandon() noexcept {
  try {
    pending_.reset();
    if (is_sending_ && earlier_ != nullptr) buckets_.mark_all_ready();
    earlier_ = nullptr;
    is_sending_ = false;
    buckets_.wait();
  } catch (const std::exception&) {
    // The step has already failed, and the next step will report this error.
  }
}

OwnedGradient OverlappedSum::sum(size_t p) {
  if (!buckets_.is_apart(p)) return OwnedGradient::in(buckets_.view(p));
  if (kept_[p].defined()) return OwnedGradient::in(kept_[p]);
  return std::exchange(sums_[p], {});
}

}  // namespace lockstep
