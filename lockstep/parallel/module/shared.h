#pragma once

#include <concepts>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace lockstep {

/// A tensor of a batch that is not split. See shared().
class Shared {
 public:
  explicit Shared(torch::Tensor tensor) : tensor_(std::move(tensor)) {}

  const torch::Tensor& tensor() const { return tensor_; }
  /// Converts to the tensor for a plain module, loss or function. Only for
  /// exactly this type, because an IValue made from a Shared has to remain a
  /// Shared.
  template <std::same_as<torch::Tensor> T>
  operator T() const {  // NOLINT(google-explicit-constructor)
    return tensor_;
  }
  /// Converts to an element of a batch that nests tuples, lists and dicts.
  operator c10::IValue() const;  // NOLINT(google-explicit-constructor)

  /// Returns the tensor, if `value` was made from a Shared.
  static std::optional<torch::Tensor> in(const c10::IValue& value);

 private:
  torch::Tensor tensor_;
};

/// Marks `tensor` to be passed whole to every shard, where other tensors of a
/// batch are split: class weights, a bank of negative samples, an attention
/// bias.
///
///     model->forward(x, lockstep::shared(bank));
///     model->train_step(x, std::make_tuple(y, lockstep::shared(weights)),
///                       loss, optimizer);
///
/// The module and the loss get the tensor itself, on their device. If it
/// requires grad, its gradient is the sum over the shards. As an IValue it may
/// be nested in tuples, lists and dicts. Forwards must not write to it.
///
/// Without a wrapper, a typed forward() takes the result as a tensor. Where
/// IValues are passed on (TorchScript), pass the tensor instead.
inline Shared shared(torch::Tensor tensor) { return Shared(std::move(tensor)); }

namespace detail {

/// The type that a function gets for a `T` that was passed to a wrapper.
template <class T>
struct Unshared {
  using Type = T;
};
template <>
struct Unshared<Shared> {
  using Type = torch::Tensor;
};
template <class... T>
struct Unshared<std::tuple<T...>> {
  using Type = std::tuple<typename Unshared<T>::Type...>;
};

}  // namespace detail

}  // namespace lockstep
