#include "lockstep/parallel/exchange/packed_tensors.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "lockstep/base/round_up.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"

namespace lockstep {

namespace {

// Lets tensors of any type be viewed in place.
constexpr int64_t kAlignment = 16;

int64_t padded_bytes(const torch::Tensor& tensor) {
  return round_up(static_cast<int64_t>(tensor.nbytes()), kAlignment);
}

}  // namespace

PackedTensors::PackedTensors(const ModuleHandle::Named& tensors) {
  int64_t total = 0;
  for (const auto& [name, tensor] : tensors) total += padded_bytes(tensor);
  if (total == 0) return;
  message_ = torch::zeros({total}, torch::TensorOptions()
                                       .dtype(torch::kUInt8)
                                       .device(tensors[0].second.device()));
  int64_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    if (bytes > 0) {
      places_.push_back({tensor, message_.narrow(0, at, bytes)
                                     .view(tensor.scalar_type())
                                     .view(tensor.sizes())});
    }
    at += padded_bytes(tensor);
  }
}

void PackedTensors::pack() {
  const torch::NoGradGuard no_grad;
  for (Place& place : places_) place.in_message.copy_(place.tensor);
}

void PackedTensors::unpack() {
  const torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (Place& place : places_) place.tensor.copy_(place.in_message);
}

void broadcast(const ProcessGroup& world, const ModuleHandle::Named& tensors,
               int root) {
  if (world.size() == 1) return;
  ModuleHandle::Named small;
  for (const auto& [name, tensor] : tensors) {
    if (!is_large(tensor)) {
      small.emplace_back(name, tensor);
      continue;
    }
    torch::Tensor elements = optim::memory_view(tensor);
    world.broadcast(elements, root);
  }
  PackedTensors packed(small);
  if (packed.empty()) return;
  if (world.rank() == root) packed.pack();
  world.broadcast(packed.message(), root);
  if (world.rank() != root) packed.unpack();
}

}  // namespace lockstep
