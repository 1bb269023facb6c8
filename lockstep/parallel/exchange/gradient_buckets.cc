#include "lockstep/parallel/exchange/gradient_buckets.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/base/trace.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/torch_compat.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/tree_sum.h"

namespace lockstep {

using c10::impl::VirtualGuardImpl;
using torch::Tensor;

namespace {

constexpr int64_t kFirstBucketBytes = 1 << 20;
// Each gradient starts at a cache line, and each bucket at a page.
constexpr int64_t kGradientAlignment = 64;
constexpr int64_t kBucketAlignment = 4096;
constexpr size_t kLargeBytes = 256 << 10;

int64_t bytes_of(const Tensor& parameter) {
  return round_up(static_cast<int64_t>(parameter.nbytes()), kGradientAlignment);
}

/// Hides from autograd that the result is a view: zero_grad() of PyTorch's
/// optimizers calls detach_(), which throws for views.
Tensor view_for(const Tensor& parameter, const Tensor& buffer, int64_t offset) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (parameter.is_non_overlapping_and_dense()) {
    return buffer.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  return buffer.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

bool is_large(const Tensor& tensor) {
  return tensor.nbytes() >= kLargeBytes &&
         tensor.is_non_overlapping_and_dense();
}

std::vector<std::vector<size_t>> assign_buckets(
    std::span<const Tensor> parameters, std::span<const size_t> order,
    int64_t first_cap, int64_t cap) {
  struct Open {
    std::vector<size_t> places;
    int64_t bytes = 0;
    size_t last = 0;  // index in `order`
    bool is_first = true;
  };
  std::map<std::pair<at::ScalarType, std::string>, Open> open;
  std::vector<std::pair<size_t, std::vector<size_t>>> closed;
  const auto close = [&](Open& bucket) {
    closed.emplace_back(bucket.last, std::exchange(bucket.places, {}));
    bucket.bytes = 0;
    bucket.is_first = false;
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const Tensor& parameter = parameters[order[i]];
    Open& bucket = open[{parameter.scalar_type(), parameter.device().str()}];
    bucket.places.push_back(order[i]);
    bucket.bytes += static_cast<int64_t>(parameter.nbytes());
    bucket.last = i;
    if (bucket.bytes >= (bucket.is_first ? first_cap : cap)) close(bucket);
  }
  for (auto& [key, bucket] : open) {
    if (!bucket.places.empty()) close(bucket);
  }
  std::sort(closed.begin(), closed.end());
  std::vector<std::vector<size_t>> assignment;
  for (auto& [last, places] : closed) assignment.push_back(std::move(places));
  return assignment;
}

CommStream::CommStream(torch::Device device) : device_(device) {
  if (device.is_cpu()) return;
  stream_ = VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
}

CommStream::Mark CommStream::mark() const {
  if (!stream_) return nullptr;
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(VirtualGuardImpl(device_.type()).getStream(device_));
  return event;
}

void CommStream::wait(const Mark& mark) const {
  if (!mark) return;
  mark->block(VirtualGuardImpl(device_.type()).getStream(device_));
}

c10::OptionalStreamGuard CommStream::enter() const {
  return stream_ ? c10::OptionalStreamGuard(*stream_)
                 : c10::OptionalStreamGuard();
}

GradientBuckets::GradientBuckets(const ProcessGroup& world,
                                 std::vector<Tensor> parameters, int64_t cap,
                                 LargeSum large_sum)
    : world_(world),
      parameters_(std::move(parameters)),
      cap_(cap),
      large_sum_(std::move(large_sum)),
      stream_(parameters_.at(0).device()),
      is_shared_(parameters_[0].is_cpu() && world.size() > 1 &&
                 world.can_share_memory()),
      in_place_(parameters_.size()) {
  if (is_shared_) {
    install_accounting_allocator();
    large_sum_ = nullptr;
  }
  for (const Tensor& parameter : parameters_) {
    is_large_.push_back((is_shared_ || large_sum_) && is_large(parameter));
  }
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  allocate(order);
}

void GradientBuckets::allocate(const std::vector<size_t>& order) {
  const auto assignment = assign_buckets(
      parameters_, order, std::min(kFirstBucketBytes, cap_), cap_);
  const auto bytes_of_bucket = [&](const std::vector<size_t>& places) {
    int64_t bytes = 0;
    for (const size_t p : places) {
      if (!is_apart(p)) bytes += bytes_of(parameters_[p]);
    }
    return bytes;
  };
  int64_t total = 0;
  for (const auto& places : assignment) {
    total += round_up(bytes_of_bucket(places), kBucketAlignment);
  }
  if (is_shared_) {
    donated_.reset();
    donated_at_ = static_cast<size_t>(total);
    memory_ = world_.shared_memory(
        donated_at_ + DonatedMemory::bytes_for(tensors_of_backward()));
  }

  buckets_.clear();
  parts_.clear();
  slots_.assign(parameters_.size(), {});
  int64_t bucket_at = 0;
  for (const auto& places : assignment) {
    const int64_t bytes = bytes_of_bucket(places);
    const Tensor& like = parameters_[places[0]];
    const auto element = static_cast<int64_t>(like.element_size());
    Bucket bucket{.places = places, .grads = {}};
    GradBucket& grads = bucket.grads;
    grads.index = static_cast<int64_t>(buckets_.size());
    grads.is_last = buckets_.size() + 1 == assignment.size();
    grads.buffer =
        is_shared_
            ? memory_.tensor(world_.rank(), static_cast<size_t>(bucket_at),
                             {bytes / element}, like.scalar_type())
            : torch::zeros({bytes / element}, like.options()
                                                  .memory_format(std::nullopt)
                                                  .requires_grad(false));
    bucket_at += round_up(bytes, kBucketAlignment);
    int64_t offset = 0;
    for (const size_t p : places) {
      slots_[p] = {.bucket = buckets_.size(), .index = grads.gradients.size()};
      grads.parameters.push_back(parameters_[p]);
      grads.gradients.emplace_back();
      if (is_apart(p)) continue;
      grads.gradients.back() = view_for(parameters_[p], grads.buffer, offset);
      offset += bytes_of(parameters_[p]) / element;
    }
    buckets_.push_back(std::move(bucket));
    cut_into_parts(buckets_.size() - 1);
  }
}

void GradientBuckets::add_part(size_t bucket, size_t first, size_t last,
                               int64_t begin, int64_t end) {
  if (first == last) return;
  const Bucket& whole = buckets_[bucket];
  Part part{.bucket = bucket,
            .places = {whole.places.begin() + static_cast<ptrdiff_t>(first),
                       whole.places.begin() + static_cast<ptrdiff_t>(last)},
            .elements = {}};
  if (!is_apart(part.places.front())) {
    part.elements = whole.grads.buffer.narrow(0, begin, end - begin);
  }
  for (const size_t p : part.places) slots_[p].part = parts_.size();
  parts_.push_back(std::move(part));
}

// Gradients are contiguous in the buffer. The gradients between two large ones,
// before the first one, or after the last one, form a part.
void GradientBuckets::cut_into_parts(size_t bucket) {
  const std::vector<size_t>& places = buckets_[bucket].places;
  const GradBucket& grads = buckets_[bucket].grads;
  if (hook_) return add_part(bucket, 0, places.size(), 0, grads.buffer.numel());
  size_t first = 0;
  int64_t begin = 0;
  int64_t at = 0;  // offset of the next gradient that is not apart
  for (size_t i = 0; i < places.size(); ++i) {
    const Tensor& parameter = parameters_[places[i]];
    const bool is_in_buffer = !is_apart(places[i]);
    if (is_large_[places[i]]) {
      add_part(bucket, first, i, begin, at);
      begin = is_in_buffer ? at + parameter.numel() : at;
      add_part(bucket, i, i + 1, at, begin);
      first = i + 1;
    }
    if (is_in_buffer) {
      at +=
          bytes_of(parameter) / static_cast<int64_t>(parameter.element_size());
    }
  }
  add_part(bucket, first, places.size(), begin, grads.buffer.numel());
}

std::vector<int64_t> GradientBuckets::tensors_of_backward() const {
  std::vector<int64_t> sizes;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (is_large_[p]) {
      sizes.push_back(static_cast<int64_t>(parameters_[p].nbytes()));
    }
  }
  return DonatedMemory::tensors_of_backward(std::move(sizes));
}

void GradientBuckets::set_hook(CommHook hook) {
  hook_ = std::move(hook);
  parts_.clear();
  for (size_t i = 0; i < buckets_.size(); ++i) cut_into_parts(i);
}

std::vector<std::vector<size_t>> GradientBuckets::assignment() const {
  std::vector<std::vector<size_t>> assignment;
  for (const Bucket& bucket : buckets_) assignment.push_back(bucket.places);
  return assignment;
}

void GradientBuckets::begin(double weight) {
  next_ = 0;
  end_ = parts_.size();
  weight_ = weight;
  for (Bucket& bucket : buckets_) bucket.grads.weight = weight;
  for (Part& part : parts_) part.pending = part.places.size();
}

bool GradientBuckets::sum_in_place(size_t p, const Tensor& gradient) {
  if (is_apart(p)) {
    in_place_[p] = optim::memory_view(gradient);
    return true;
  }
  if (has_hook() || !is_large_[p] || !gradient.is_cpu()) return false;
  if (!donated_) {
    // From now on, autograd allocates this thread's gradients there.
    donated_.emplace(memory_.of(world_.rank()).subspan(donated_at_),
                     tensors_of_backward(), memory_.owner_of(world_.rank()));
  }
  const Tensor& seen = view(p);
  if (gradient.scalar_type() != seen.scalar_type() ||
      gradient.sizes() != seen.sizes() ||
      gradient.strides() != seen.strides()) {
    return false;
  }
  if (!memory_.offset_of(world_.rank(), gradient)) return false;
  in_place_[p] = optim::memory_view(gradient);
  return true;
}

void GradientBuckets::mark_ready(size_t p) {
  --parts_[slots_[p].part].pending;
  send_ready();
}

void GradientBuckets::release_last() {
  end_ = parts_.size();
  send_ready();
}

void GradientBuckets::mark_all_ready() {
  for (Part& part : parts_) part.pending = 0;
  release_last();
}

void GradientBuckets::send_ready() {
  for (; next_ < end_ && parts_[next_].pending == 0; ++next_) {
    const Part& part = parts_[next_];
    submit("all-reduce", buckets_[part.bucket].grads.index,
           [this, &part] { sum(part); });
  }
}

void GradientBuckets::sum_apart(size_t p) {
  Tensor elements = std::exchange(in_place_[p], {});
  if (!elements.defined()) {
    // A step that failed still has to take part in the sums of the other ranks.
    elements = torch::zeros({parameters_[p].numel()},
                            torch::dtype(parameters_[p].scalar_type())
                                .device(parameters_[p].device()));
  }
  // The communication stream uses it after this returns. It was made in another
  // stream, which gets its memory back.
  accelerator::record_use(elements);
  large_sum_(p, elements);
}

void GradientBuckets::sum(const Part& part) {
  if (hook_) return run_hook(buckets_[part.bucket].grads);
  const torch::NoGradGuard no_grad;
  if (is_apart(part.places.front())) return sum_apart(part.places.front());
  Tensor elements = part.elements;
  if (!is_shared_) {
    // If large gradients are summed in a special order, the others are too.
    const TreeSum way = large_sum_ ? tree_sum_of(world_, elements.scalar_type())
                                   : TreeSum::kByGroup;
    return tree_all_reduce(world_, elements, way);
  }
  // Only a large gradient is summed in place, and it is a separate part.
  const Tensor& in_place = in_place_[part.places.front()];
  if (in_place.defined()) elements = in_place;
  world_.all_reduce(elements, make_pre_mul_sum(weight_));
}

void GradientBuckets::run_hook(GradBucket& grads) {
  const void* memory = grads.buffer.data_ptr();
  hook_(world_, grads);
  if (grads.buffer.data_ptr() == memory) return;
  throw ParallelError(
      "ddp", {.code = ErrorCode::kMisuse,
              .what = "a comm hook put another tensor in bucket.buffer",
              .expected = "the result in the memory that is there",
              .fix = "write bucket.buffer.copy_(result)"});
}

void GradientBuckets::submit(const char* name, int64_t index,
                             const std::function<void()>& task) {
  const CommStream::Mark ready = stream_.mark();
  const auto in_order = [this, ready, task, name, index] {
    const TraceLane lane(world_.rank(), "all-reduce");
    const TraceSpan span(name, TraceCategory::kCommunication, index);
    const auto on_stream = stream_.enter();
    stream_.wait(ready);
    task();
  };
  auto work = c10::make_intrusive<QueuedWork>(
      world_.rank(), c10d::OpType::ALLREDUCE, std::vector<Tensor>());
  works_.push_back(queue_.submit(std::move(work), in_order, world_.size() > 1));
}

void GradientBuckets::settle() noexcept {
  for (const auto& work : works_) {
    try {
      work->wait();
    } catch (const std::exception&) {
      // wait() throws it later.
    }
  }
}

void GradientBuckets::wait() {
  // If one throws, settle() waits for the rest, which uses this object.
  while (!works_.empty()) {
    const auto work = works_.front();
    works_.erase(works_.begin());
    work->wait();
  }
  for (Tensor& elements : in_place_) elements.reset();
  // On a GPU, only the stream waits.
  CommStream::Mark done;
  {
    const auto on_stream = stream_.enter();
    done = stream_.mark();
  }
  stream_.wait(done);
}

void GradientBuckets::rebuild_buckets(int root,
                                      const std::vector<size_t>& arrivals) {
  std::vector<size_t> now;
  for (const Bucket& bucket : buckets_) {
    now.insert(now.end(), bucket.places.begin(), bucket.places.end());
  }
  std::vector<bool> has_arrived(parameters_.size());
  for (const size_t p : arrivals) has_arrived[p] = true;
  std::vector<int64_t> order(arrivals.begin(), arrivals.end());
  for (const size_t p : now) {
    if (!has_arrived[p]) order.push_back(static_cast<int64_t>(p));
  }
  Tensor message =
      torch::tensor(order, torch::kInt64).to(parameters_[0].device());
  world_.broadcast(message, root);
  message = message.cpu();
  const auto* agreed = message.const_data_ptr<int64_t>();
  const std::vector<size_t> next(agreed, agreed + message.numel());
  if (next != now) allocate(next);
}

}  // namespace lockstep
