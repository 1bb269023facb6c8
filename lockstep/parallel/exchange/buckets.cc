#include "lockstep/parallel/exchange/buckets.h"

#include <algorithm>
#include <map>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>

#include "lockstep/base/round_up.h"

namespace lockstep::ddp {

using torch::Tensor;

namespace {

// Each gradient starts at a cache line, each bucket at a page.
constexpr int64_t kLine = 64;
constexpr int64_t kPage = 4096;

int64_t bytes_of(std::span<const Tensor> parameters,
                 const std::vector<size_t>& places) {
  int64_t bytes = 0;
  for (const size_t p : places) {
    bytes += round_up(static_cast<int64_t>(parameters[p].nbytes()), kLine);
  }
  return bytes;
}

/// Autograd does not know that it is a view: zero_grad() of torch's optimizers
/// calls detach_(), which refuses those.
Tensor view_for(const Tensor& parameter, const Tensor& buffer, int64_t offset) {
  const at::AutoDispatchBelowADInplaceOrView unseen;
  if (parameter.is_non_overlapping_and_dense()) {
    return buffer.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  return buffer.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

}  // namespace

std::vector<std::vector<size_t>> assign_buckets(
    std::span<const Tensor> parameters, std::span<const size_t> order,
    int64_t first_cap, int64_t cap) {
  struct Open {
    std::vector<size_t> places;
    int64_t bytes = 0;
    size_t last = 0;  // in `order`
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

std::vector<Bucket> make_buckets(
    const World& world, std::span<const Tensor> parameters,
    const std::vector<std::vector<size_t>>& assignment) {
  int64_t total = 0;
  bool is_on_host = true;
  for (const auto& places : assignment) {
    total += round_up(bytes_of(parameters, places), kPage);
    is_on_host = is_on_host && parameters[places[0]].is_cpu();
  }
  SharedMemory memory;
  const bool is_shared =
      is_on_host && world.size() > 1 && world.can_share_memory();
  if (is_shared) memory = world.shared_memory(static_cast<size_t>(total));

  std::vector<Bucket> buckets;
  int64_t at = 0;
  for (const auto& places : assignment) {
    const int64_t bytes = bytes_of(parameters, places);
    const Tensor& like = parameters[places[0]];
    const auto element = static_cast<int64_t>(like.element_size());
    Bucket bucket{.places = places, .grads = {}};
    GradBucket& grads = bucket.grads;
    grads.index = static_cast<int64_t>(buckets.size());
    grads.is_last = buckets.size() + 1 == assignment.size();
    grads.buffer =
        is_shared
            ? memory.tensor(world.rank(), static_cast<size_t>(at),
                            {bytes / element}, like.scalar_type())
            : torch::zeros({bytes / element}, like.options()
                                                  .memory_format(std::nullopt)
                                                  .requires_grad(false));
    at += round_up(bytes, kPage);
    int64_t offset = 0;
    for (const size_t p : places) {
      grads.parameters.push_back(parameters[p]);
      grads.gradients.push_back(view_for(parameters[p], grads.buffer, offset));
      offset += round_up(static_cast<int64_t>(parameters[p].nbytes()), kLine) /
                element;
    }
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

}  // namespace lockstep::ddp
