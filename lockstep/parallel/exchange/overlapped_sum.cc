#include "lockstep/parallel/exchange/overlapped_sum.h"

#include <bit>

#include "lockstep/base/round_up.h"
#include "lockstep/base/trace.h"

namespace lockstep {

using torch::Tensor;

namespace {

// The first bucket is small, to go early; the others are large enough for the
// sockets, and small enough that little is left to send after the backward.
constexpr int64_t kFirstBucketBytes = 1 << 20;
constexpr int64_t kBucketBytes = 4 << 20;
constexpr int64_t kGradientAlignment = 64;

}  // namespace

bool OverlappedSum::can_sum(const std::vector<Tensor>& parameters,
                            int64_t shards, int64_t ranks, int64_t workers) {
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
    : world_(world), is_filled_(parameters.size()) {
  cut_into_buckets(parameters);
}

OverlappedSum::~OverlappedSum() { abandon(); }

void OverlappedSum::cut_into_buckets(const std::vector<Tensor>& parameters) {
  bucket_of_.resize(parameters.size());
  views_.resize(parameters.size());
  std::vector<int64_t> at(parameters.size());
  std::vector<int64_t> lengths;
  int64_t most = kFirstBucketBytes;
  for (size_t i = parameters.size(); i-- > 0;) {
    const Tensor& parameter = parameters[i];
    const auto size = static_cast<int64_t>(parameter.element_size());
    const int64_t length =
        round_up(static_cast<int64_t>(parameter.nbytes()), kGradientAlignment) /
        size;
    const bool fits = !buckets_.empty() &&
                      parameters[buckets_.back().parameters[0]].scalar_type() ==
                          parameter.scalar_type() &&
                      (lengths.back() + length) * size <= most;
    if (!fits) {
      if (!buckets_.empty()) most = kBucketBytes;
      buckets_.emplace_back();
      lengths.push_back(0);
    }
    bucket_of_[i] = buckets_.size() - 1;
    at[i] = lengths.back();
    lengths.back() += length;
    buckets_.back().parameters.push_back(i);
  }
  for (size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    bucket.flat = torch::zeros(
        {lengths[b]}, parameters[bucket.parameters[0]].detach().options());
    for (const size_t p : bucket.parameters) {
      views_[p] = bucket.flat.as_strided(parameters[p].sizes(),
                                         parameters[p].strides(), at[p]);
    }
  }
}

void OverlappedSum::begin(const std::vector<PartialSum>& earlier) {
  earlier_ = &earlier;
  next_bucket_ = 0;
  is_right_ = true;
  is_filled_.assign(is_filled_.size(), false);
  for (Bucket& bucket : buckets_) bucket.missing = bucket.parameters.size();
}

void OverlappedSum::add(size_t p, const Tensor& gradient) {
  if (!has_begun()) return;
  // It may be on its way already.
  if (is_filled_[p]) {
    is_right_ = false;
    return;
  }
  fill(p, gradient);
  send_full_buckets();
}

void OverlappedSum::fill(size_t p, const Tensor& gradient) {
  const torch::NoGradGuard no_grad;
  Tensor& view = views_[p];
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
  --buckets_[bucket_of_[p]].missing;
}

void OverlappedSum::send_full_buckets() {
  while (next_bucket_ < buckets_.size() &&
         buckets_[next_bucket_].missing == 0) {
    const size_t index = next_bucket_++;
    const auto sum = [this, index] {
      const TraceLane lane(world_.rank(), "all-reduce");
      const TraceSpan span("all-reduce", TraceCategory::kCommunication,
                           static_cast<int64_t>(index));
      const torch::NoGradGuard no_grad;
      world_.all_reduce(buckets_[index].flat);
    };
    auto work = c10::make_intrusive<QueuedWork>(
        world_.rank(), c10d::OpType::ALLREDUCE, std::vector<Tensor>());
    works_.push_back(queue_.submit(std::move(work), sum, /*is_async=*/true));
  }
}

void OverlappedSum::finish(const std::vector<OwnedGradient>& gradients) {
  // In the order of the buckets: the first may go while the next is filled.
  for (const Bucket& bucket : buckets_) {
    for (const size_t p : bucket.parameters) {
      if (!is_filled_[p]) fill(p, gradients[p].tensor());
    }
    send_full_buckets();
  }
  earlier_ = nullptr;
}

void OverlappedSum::wait() {
  for (const auto& work : std::exchange(works_, {})) work->wait();
}

void OverlappedSum::abandon() noexcept {
  try {
    if (has_begun()) {
      earlier_ = nullptr;
      for (Bucket& bucket : buckets_) bucket.missing = 0;
      send_full_buckets();
    }
    wait();
  } catch (const std::exception&) {
    // The step has an error already, and the next one will find this.
  }
}

OwnedGradient OverlappedSum::sum(size_t p) const {
  return OwnedGradient::in(views_[p]);
}

}  // namespace lockstep
