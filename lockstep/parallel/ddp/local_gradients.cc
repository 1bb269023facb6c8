#include "lockstep/parallel/ddp/local_gradients.h"

namespace lockstep::ddp {

using torch::Tensor;

void LocalGradients::add(size_t p, const Tensor& incoming) {
  if (!incoming.defined()) return;
  is_local_[p] = true;
  own_memory(p, incoming);
}

void LocalGradients::note_mixture(size_t p) {
  const Tensor& gradient = parameters_[p].grad();
  if (!gradient.defined() || !gradient.any().item<bool>()) {
    is_mixed_[p] = false;
  } else if (!is_local_[p]) {
    is_mixed_[p] = true;
  }
}

std::vector<size_t> LocalGradients::mixed() const {
  std::vector<size_t> mixed;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const Tensor& gradient = parameters_[p].grad();
    if (!gradient.defined() || !is_local_[p] || !is_mixed_[p]) continue;
    if (gradient.any().item<bool>()) mixed.push_back(p);
  }
  return mixed;
}

std::vector<Tensor> LocalGradients::take_sums() {
  std::vector<Tensor> taken(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    Tensor& gradient = parameters_[p].mutable_grad();
    if (!gradient.defined() || is_local_[p]) continue;
    taken[p] = gradient.clone();
    gradient.reset();
  }
  return taken;
}

bool LocalGradients::has_own_memory(size_t p, const Tensor& incoming) const {
  const Tensor& gradient = parameters_[p].grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return false;
  size_t known = 1;
  if (incoming.defined() && gradient.is_alias_of(incoming)) {
    ++known;
    // What it is a view of, which nothing but the view may hold: the gradient
    // of a Linear's weight is that of the transposed weight, transposed.
    if (incoming.is_view() && incoming._base().use_count() == 1) ++known;
  }
  return gradient.storage().use_count() <= known;
}

// Autograd takes views for .grad, too: of a gradient that another parameter or
// the caller has as well. To add to one of them would change the others.
void LocalGradients::own_memory(size_t p, const Tensor& incoming) {
  Tensor& gradient = parameters_[p].mutable_grad();
  if (!gradient.defined() || gradient.layout() != torch::kStrided) return;
  if (!incoming.defined() || !gradient.is_alias_of(incoming)) return;
  if (has_own_memory(p, incoming)) return;
  const torch::NoGradGuard no_grad;
  gradient = gradient.clone();
}

}  // namespace lockstep::ddp
