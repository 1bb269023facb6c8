#include "lockstep/optim/slot.h"

#include <utility>

#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/tensor_device.h"
#include "lockstep/optim/blocks.h"

namespace lockstep::optim {

using torch::Tensor;

namespace {

Tensor view_of(const Tensor& tensor, const Block& block) {
  return memory_view(tensor, block.offset, block.length);
}

/// Returns a copy of a block in memory of its own on its device.
Tensor block_on_device(const Tensor& view, const Placement& placement,
                       size_t block) {
  if (view.device() == placement.device_of(block)) return view.clone();
  return to_device(view, placement.devices()[placement.owner_of(block)]);
}

Tensor on_host(const Tensor& parameter, at::ScalarType type) {
  return torch::empty_like(parameter.detach(),
                           torch::dtype(type).device(torch::kCPU));
}

}  // namespace

void Slot::allocate(const std::vector<Tensor>& parameters,
                    const Placement& placement) {
  if (is_allocated_) return;
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> tensors, views;
  std::vector<at::ScalarType> types;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Tensor parameter = parameters[p].detach();
    const bool is_at_home = placement.is_at_home(p);
    // Without a function, only what stays is made at home.
    Tensor tensor = make_        ? make_(parameters[p])
                    : is_at_home ? torch::zeros_like(parameter)
                                 : Tensor();
    types.push_back((tensor.defined() ? tensor : parameter).scalar_type());
    for (size_t b = placement.first_block_of(p);
         b < placement.first_block_of(p + 1); ++b) {
      const Block& block = placement.blocks()[b];
      if (!tensor.defined()) {
        views.push_back(torch::zeros(
            {block.length},
            torch::dtype(types[p]).device(placement.device_of(b))));
      } else {
        const Tensor view = view_of(tensor, block);
        views.push_back(is_at_home ? view
                                   : block_on_device(view, placement, b));
      }
    }
    tensors.push_back(is_at_home ? std::move(tensor) : Tensor());
  }
  tensors_ = std::move(tensors);
  views_ = std::move(views);
  types_ = std::move(types);
  is_allocated_ = true;
}

Slot Slot::moved_to(const Placement& placement) const {
  Slot moved = *this;
  if (!is_allocated_) return moved;
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < tensors_.size(); ++p) {
    if (tensors_[p].defined() && placement.is_at_home(p)) continue;
    moved.tensors_[p].reset();
    for (size_t b = placement.first_block_of(p);
         b < placement.first_block_of(p + 1); ++b) {
      moved.views_[b] = block_on_device(views_[b], placement, b);
    }
  }
  return moved;
}

Tensor Slot::whole(size_t p, const Tensor& parameter,
                   const Placement& placement) const {
  if (tensors_[p].defined()) return tensors_[p];
  const torch::NoGradGuard no_grad;
  const Tensor whole = on_host(parameter, types_[p]);
  for (size_t b = placement.first_block_of(p);
       b < placement.first_block_of(p + 1); ++b) {
    view_of(whole, placement.blocks()[b]).copy_(views_[b]);
  }
  return whole;
}

void Slot::load(size_t p, const Tensor& values, const Tensor& parameter,
                const Placement& placement) {
  const torch::NoGradGuard no_grad;
  if (tensors_[p].defined()) {
    tensors_[p].copy_(values);
    return;
  }
  const Tensor whole = on_host(parameter, types_[p]);
  whole.copy_(values);
  for (size_t b = placement.first_block_of(p);
       b < placement.first_block_of(p + 1); ++b) {
    views_[b].copy_(view_of(whole, placement.blocks()[b]));
  }
}

}  // namespace lockstep::optim
