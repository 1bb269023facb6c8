#include "lockstep/optim/sgd_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include <ATen/Version.h>
#include <ATen/core/LegacyTypeDispatch.h>

namespace lockstep::optim {

using torch::Tensor;

namespace {

bool is_half(at::ScalarType type) {
  return type == torch::kHalf || type == torch::kBFloat16;
}

void update_in_place(const Tensor& parameter, const Tensor& gradient,
                     const Tensor& momentum, const SgdStep& step) {
  const at::TensorList momenta =
      momentum.defined() ? at::TensorList(momentum) : at::TensorList();
  at::_fused_sgd_(parameter, gradient, momenta, step.weight_decay,
                  step.momentum, step.lr, step.dampening, step.nesterov,
                  /*maximize=*/false, step.is_first);
}

/// Calls the operators of torch::optim::SGD::step(), in their order.
void update_by_operators(const Tensor& parameter, const Tensor& gradient,
                         const Tensor& momentum, const SgdStep& step) {
  Tensor change = gradient;
  if (step.weight_decay != 0) change = change.add(parameter, step.weight_decay);
  if (momentum.defined()) {
    if (step.is_first) {
      momentum.copy_(change);
    } else {
      momentum.mul_(step.momentum).add_(change, 1 - step.dampening);
    }
    change = step.nesterov ? change.add(momentum, step.momentum) : momentum;
  }
  parameter.add_(change, -step.lr);
}

#if defined(__x86_64__)

/// Returns whether ATen's operators use AVX2 or AVX-512. add() with a factor
/// then is a fused multiply-add.
bool aten_uses_fma() {
  static const bool uses = [] {
    const std::string capability = at::get_cpu_capability();
    return capability == "AVX2" || capability == "AVX512";
  }();
  return uses;
}

/// Does the same as update_by_operators() in one pass over memory. `m` is null
/// without momentum.
template <typename T>
__attribute__((target("avx2,fma"))) void update_in_one_pass(
    T* p, const T* g, T* m, int64_t count, const SgdStep& step) {
  // Each loop is simple enough for the compiler to vectorize it. What a loop
  // leaves is in the first-level cache for the next one.
  constexpr int64_t kPiece = 512;
  std::array<T, kPiece> changes;
  const T decay = static_cast<T>(step.weight_decay);
  const T kept = static_cast<T>(step.momentum);
  const T added = static_cast<T>(1 - step.dampening);
  const T rate = static_cast<T>(-step.lr);
  for (int64_t at = 0; at < count; at += kPiece) {
    const int64_t n = std::min(kPiece, count - at);
    const T* change = g + at;
    T* const parameter = p + at;
    if (step.weight_decay != 0) {
      for (int64_t i = 0; i < n; ++i) {
        changes[i] = std::fma(parameter[i], decay, change[i]);
      }
      change = changes.data();
    }
    if (m != nullptr) {
      T* const momentum = m + at;
      if (step.is_first) {
        std::copy_n(change, n, momentum);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          momentum[i] = std::fma(change[i], added, momentum[i] * kept);
        }
      }
      if (step.nesterov) {
        for (int64_t i = 0; i < n; ++i) {
          changes[i] = std::fma(momentum[i], kept, change[i]);
        }
        change = changes.data();
      } else {
        change = momentum;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      parameter[i] = std::fma(change[i], rate, parameter[i]);
    }
  }
}

template <typename T>
void update_memory(const Tensor& parameter, const Tensor& gradient,
                   const Tensor& momentum, const SgdStep& step) {
  update_in_one_pass(parameter.mutable_data_ptr<T>(),
                     gradient.const_data_ptr<T>(),
                     momentum.defined() ? momentum.mutable_data_ptr<T>()
                                        : static_cast<T*>(nullptr),
                     parameter.numel(), step);
}

bool update_in_one_pass(const Tensor& parameter, const Tensor& gradient,
                        const Tensor& momentum, const SgdStep& step) {
  const bool fits = parameter.is_cpu() && aten_uses_fma() &&
                    gradient.scalar_type() == parameter.scalar_type() &&
                    (!momentum.defined() ||
                     momentum.scalar_type() == parameter.scalar_type());
  if (!fits) return false;
  switch (parameter.scalar_type()) {
    case torch::kFloat:
      update_memory<float>(parameter, gradient, momentum, step);
      return true;
    case torch::kDouble:
      update_memory<double>(parameter, gradient, momentum, step);
      return true;
    default:
      return false;
  }
}

#else

bool update_in_one_pass(const Tensor&, const Tensor&, const Tensor&,
                        const SgdStep&) {
  return false;
}

#endif

}  // namespace

void sgd_update(const Tensor& parameter, const Tensor& gradient,
                const Tensor& momentum, const SgdStep& step) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!parameter.is_cpu() || !is_half(parameter.scalar_type())) {
    return update_in_place(parameter, gradient, momentum, step);
  }
  // The CPU kernel of ATen 2.11 skips whole vectors of half and bfloat16
  // (pytorch #191763). In float it is correct, and the copies of the block stay
  // in the cache. The kernel also computes in float for these types.
  const Tensor wide = parameter.to(torch::kFloat);
  const Tensor wide_momentum =
      momentum.defined() ? momentum.to(torch::kFloat) : momentum;
  update_in_place(wide, gradient.to(torch::kFloat), wide_momentum, step);
  parameter.copy_(wide);
  if (momentum.defined()) momentum.copy_(wide_momentum);
}

void sgd_update_like_torch(const Tensor& parameter, const Tensor& gradient,
                           const Tensor& momentum, const SgdStep& step) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (update_in_one_pass(parameter, gradient, momentum, step)) return;
  update_by_operators(parameter, gradient, momentum, step);
}

}  // namespace lockstep::optim
