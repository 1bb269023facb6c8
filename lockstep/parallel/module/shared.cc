#include "lockstep/parallel/module/shared.h"

namespace lockstep {

namespace {

struct SharedHolder : torch::CustomClassHolder {
  explicit SharedHolder(torch::Tensor held) : tensor(std::move(held)) {}
  torch::Tensor tensor;
};

}  // namespace

Shared::operator c10::IValue() const {
  return c10::IValue::make_capsule(c10::make_intrusive<SharedHolder>(tensor_));
}

std::optional<torch::Tensor> Shared::in(const c10::IValue& value) {
  if (!value.isCapsule()) return std::nullopt;
  const auto capsule = value.toCapsule();
  const auto* holder = dynamic_cast<const SharedHolder*>(capsule.get());
  if (!holder) return std::nullopt;
  return holder->tensor;
}

}  // namespace lockstep
