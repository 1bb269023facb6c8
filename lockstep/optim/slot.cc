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

Tensor on_host(const Tensor& parameter) {
  return torch::empty_like(parameter.detach(), torch::device(torch::kCPU));
}

}  // namespace

Slot::Slot(std::string name, const StateFactory& make,
           const std::vector<Tensor>& parameters, const Placement& placement)
    : name_(std::move(name)) {
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const Tensor parameter = parameters[p].detach();
    const bool is_at_home = placement.is_at_home(p);
    // Divided state is never whole on one device.
    const Tensor tensor = !is_at_home ? Tensor()
                          : make      ? make(parameters[p])
                                      : torch::zeros_like(parameter);
    for (size_t b = placement.first_block_of(p);
         b < placement.first_block_of(p + 1); ++b) {
      const Block& block = placement.blocks()[b];
      views_.push_back(is_at_home
                           ? view_of(tensor, block)
                           : torch::zeros({block.length},
                                          torch::dtype(parameter.scalar_type())
                                              .device(placement.device_of(b))));
    }
    tensors_.push_back(tensor);
  }
}

Slot Slot::moved_to(const Placement& placement) const {
  Slot moved = *this;
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
  const Tensor whole = on_host(parameter);
  for (size_t b = placement.first_block_of(p);
       b < placement.first_block_of(p + 1); ++b) {
    view_of(whole, placement.blocks()[b]).copy_(views_[b]);
  }
  return whole;
}

void Slot::load(size_t p, const Tensor& values, const Tensor& parameter,
                const Placement& placement) {
  const torch::NoGradGuard no_grad;
  const Tensor source = values.defined() ? values : torch::zeros({});
  if (tensors_[p].defined()) {
    tensors_[p].copy_(source);
    return;
  }
  const Tensor whole = on_host(parameter);
  whole.copy_(source);
  for (size_t b = placement.first_block_of(p);
       b < placement.first_block_of(p + 1); ++b) {
    views_[b].copy_(view_of(whole, placement.blocks()[b]));
  }
}

}  // namespace lockstep::optim
