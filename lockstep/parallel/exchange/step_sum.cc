#include "lockstep/parallel/exchange/step_sum.h"

#include <utility>

#include "lockstep/base/chunk.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/tree_sum.h"

namespace lockstep {

using torch::Tensor;

namespace {

// Large enough for the sockets, and small enough to leave little to send after
// the backward.
constexpr int64_t kBucketBytes = 4 << 20;

/// Returns whether the nodes of the tree over `ranks` ranks that are below
/// [first, last) are nodes of the tree over `shards` shards.
bool are_tree_nodes(int64_t first, int64_t last, int64_t shards,
                    int64_t ranks) {
  if (!is_tree_node(shards_of_worker(first, ranks, shards).first,
                    shards_of_worker(last - 1, ranks, shards).last, shards)) {
    return false;
  }
  if (last - first == 1) return true;
  const int64_t middle = first + left_branch(last - first);
  return are_tree_nodes(first, middle, shards, ranks) &&
         are_tree_nodes(middle, last, shards, ranks);
}

}  // namespace

bool StepSum::can_sum(int64_t shards, int64_t ranks) {
  return are_tree_nodes(0, ranks, shards, ranks);
}

StepSum::StepSum(const ProcessGroup& world,
                 const std::vector<Tensor>& parameters,
                 std::vector<std::string> names, Options options)
    : world_(world),
      parameters_(parameters),
      options_(std::move(options)),
      has_gradient_(parameters.size()),
      sums_(parameters.size()),
      sync_(
          world, parameters, std::move(names), kBucketBytes,
          options_.hook ? GradientBuckets::LargeSum()
                        : [this](size_t p, const Tensor& elements) {
                            sum_large(p, elements);
                          }) {
  if (options_.hook) sync_.buckets().set_hook(options_.hook);
  if (options_.holds_few) schedule_ = SendingSchedule::kAsTheyArrive;
}

StepSum::~StepSum() { abandon(); }

void StepSum::set_schedule(bool came_once) {
  if (schedule_ != SendingSchedule::kNotKnown) return;
  schedule_ = came_once ? SendingSchedule::kAsTheyArrive
                        : SendingSchedule::kAfterBackward;
}

void StepSum::begin(const std::vector<PartialSum>& earlier) {
  const bool is_known = schedule_ == SendingSchedule::kAsTheyArrive;
  start(earlier, is_known ? 1 : kUntilFlush);
}

void StepSum::start(const std::vector<PartialSum>& earlier, int64_t expected) {
  earlier_ = &earlier;
  pending_.reset();
  has_gradient_.assign(has_gradient_.size(), false);
  for (OwnedGradient& sum : sums_) sum = {};
  sync_.begin(std::vector<int64_t>(parameters_.size(), expected),
              /*weight=*/1);
}

void StepSum::add(size_t p, const Tensor& leaf) {
  if (sync_.arrive(p) != SyncOutcome::kComplete) return;
  take_pending();
  // The gradient can't be taken yet: autograd still holds the tensor that it
  // added to .grad.
  pending_ = {.p = p, .leaf = leaf};
}

void StepSum::take_pending() {
  if (!pending_) return;
  const Pending pending = *std::exchange(pending_, std::nullopt);
  Tensor gradient = std::move(pending.leaf.mutable_grad());
  pending.leaf.mutable_grad().reset();
  fill(pending.p,
       OwnedGradient::take(std::move(gradient), parameters_[pending.p]));
}

void StepSum::fill(size_t p, OwnedGradient gradient) {
  const torch::NoGradGuard no_grad;
  const bool is_apart = sync_.buckets().is_apart(p);
  if (is_apart && options_.holds_few && bytes_to_send_ > kMaxBytesToSend) {
    sync_.buckets().settle();
  }
  // With a hook, the partial sums of a rank may be on several devices.
  const Device home = place_of(parameters_[p]);
  Tensor sum = gradient.tensor();
  accelerator::record_use(sum);  // made in a worker's stream
  if (sum.defined()) sum = to_device(sum, home);
  // A gradient that is not in a bucket is summed in its own memory.
  Tensor target = !is_apart       ? sync_.buckets().view(p)
                  : sum.defined() ? sum
                                  : torch::empty_like(parameters_[p].detach());
  // Adds from the last shard to the first. That is the order of the tree,
  // because each partial sum has as many shards as all later ones together.
  for (auto partial = earlier_->rbegin(); partial != earlier_->rend();
       ++partial) {
    Tensor left = partial->gradients[p].tensor();
    if (!left.defined()) continue;
    accelerator::record_use(left);
    left = to_device(left, home);
    if (sum.defined()) {
      at::add_out(target, left, sum);
      sum = target;
    } else {
      sum = left;
    }
  }
  has_gradient_[p] = sum.defined();
  if (!sum.defined()) {
    target.zero_().neg_();  // -0.0, also in both parts of a complex number
  } else if (!sum.is_same(target)) {
    target.copy_(sum);
  }
  if (is_apart) {
    bytes_to_send_ += static_cast<int64_t>(target.nbytes());
    sync_.buckets().sum_in_place(p, target);
    sums_[p] = OwnedGradient::in(std::move(target));
  }
  sync_.send(p);
}

void StepSum::sum_large(size_t p, const Tensor& elements) {
  if (options_.large_sum) {
    Tensor sum = options_.large_sum(p, elements);
    if (sum.defined()) sums_[p] = OwnedGradient::in(std::move(sum));
  } else {
    tree_all_reduce(world_, elements,
                    tree_sum_of(world_, elements.scalar_type()));
  }
  bytes_to_send_ -= static_cast<int64_t>(elements.nbytes());
}

void StepSum::end_backward(std::vector<OwnedGradient>& gradients) {
  if (schedule_ == SendingSchedule::kAsTheyArrive) {
    pending_.reset();  // its gradient is in `gradients`
    fill_rest(gradients);
  }
  earlier_ = nullptr;
}

void StepSum::fill_rest(std::vector<OwnedGradient>& gradients) {
  sync_.flush();
  for (const size_t p : sync_.unsent()) {
    fill(p, std::exchange(gradients[p], {}));
  }
}

void StepSum::finish() {
  if (state().phase == SyncPhase::kFlushed) sync_.finish();
}

void StepSum::sum_after(std::vector<PartialSum> partials) {
  std::vector<OwnedGradient> last(parameters_.size());
  if (!partials.empty()) {
    last = std::move(partials.back().gradients);
    partials.pop_back();
  }
  try {
    // In a first step, begin() was called before the backward.
    if (state().phase != SyncPhase::kOpen) start(partials, /*expected=*/0);
    earlier_ = &partials;
    fill_rest(last);
    earlier_ = nullptr;
    finish();
  } catch (...) {
    abandon();
    throw;
  }
}

void StepSum::follow_order() {
  if (sync_.knows_order()) sync_.follow_order(/*root=*/0);
}

void StepSum::abandon() noexcept {
  pending_.reset();
  earlier_ = nullptr;
  sync_.abandon(GradientSync::Peers::kWait);
}

std::vector<OwnedGradient> StepSum::take_sums() {
  std::vector<OwnedGradient> sums;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!sync_.buckets().is_apart(p)) {
      sums.push_back(OwnedGradient::in(sync_.buckets().view(p)));
    } else {
      sums.push_back(std::exchange(sums_[p], {}));
    }
  }
  sync_.end_step();
  return sums;
}

}  // namespace lockstep
