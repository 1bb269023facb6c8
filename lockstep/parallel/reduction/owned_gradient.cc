#include "lockstep/parallel/reduction/owned_gradient.h"

#include <c10/core/impl/COW.h>

#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Returns whether only `tensor` can reach its memory.
bool holds_alone(const Tensor& tensor) {
  if (tensor.use_count() != 1 || !tensor.has_storage()) return false;
  const c10::Storage& storage = tensor.storage();
  // Memory that did not come from an allocator (from_blob) can't be resized and
  // may have other owners. A lazy copy shares its memory without holding the
  // storage.
  return storage.use_count() == 1 && storage.resizable() &&
         !c10::impl::cow::is_cow_data_ptr(storage.data_ptr());
}

/// Returns whether the memory of `gradient`, read from its start, has the
/// elements in the order of the parameter's.
bool is_laid_out_like(const Tensor& gradient, const Tensor& parameter) {
  return gradient.layout() == torch::kStrided &&
         gradient.scalar_type() == parameter.scalar_type() &&
         gradient.device() == parameter.device() &&
         gradient.strides() == parameter.strides() &&
         gradient.is_non_overlapping_and_dense() &&
         gradient.storage_offset() == 0 && !gradient.is_conj() &&
         !gradient.is_neg() && !gradient.requires_grad();
}

}  // namespace

OwnedGradient OwnedGradient::take(Tensor gradient, const Tensor& parameter) {
  if (!gradient.defined()) return {};
  if (is_laid_out_like(gradient, parameter) && holds_alone(gradient)) {
    return OwnedGradient(std::move(gradient));
  }
  torch::NoGradGuard no_grad;
  if (gradient.layout() != torch::kStrided) {
    optim::laid_out_like(gradient, parameter);  // throws an error that says why
  }
  Tensor copy = torch::empty_like(parameter.detach());
  copy.copy_(gradient.detach());
  return OwnedGradient(std::move(copy));
}

bool has_own_memory(const Tensor& parameter, const Tensor& incoming) {
  const Tensor& gradient = parameter.grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return false;
  size_t known = 1;
  if (incoming.defined() && gradient.is_alias_of(incoming)) {
    ++known;
    // The gradient of a Linear's weight is a view: the transposed gradient of
    // the transposed weight. No other tensor than that view may hold its base.
    if (incoming.is_view() && incoming._base().use_count() == 1) ++known;
  }
  return gradient.storage().use_count() <= known;
}

// Autograd also stores views in .grad, of a gradient that another parameter or
// the caller holds too. Adding to one of them would change the others.
void own_memory(const Tensor& parameter, const Tensor& incoming) {
  Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return;
  if (!incoming.defined() || !gradient.is_alias_of(incoming)) return;
  if (has_own_memory(parameter, incoming)) return;
  const torch::NoGradGuard no_grad;
  gradient = gradient.clone();
}

}  // namespace lockstep
