#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include "lockstep/parallel/module/nested.h"
#include "lockstep/parallel/module/shared.h"

// Conversions between typed forward() methods and IValues, the form in which
// batches are scattered and outputs are gathered.
namespace lockstep::detail {

template <class F>
struct MethodTraits;
template <class M, class R, class... Args>
struct MethodTraits<R (M::*)(Args...)> {
  using Result = R;
  using Arguments = std::tuple<std::decay_t<Args>...>;
};
template <class M, class R, class... Args>
struct MethodTraits<R (M::*)(Args...) const> : MethodTraits<R (M::*)(Args...)> {
};

/// A module with one forward(), which is neither overloaded nor a template.
template <class M>
concept HasOneForward = requires {
  &M::forward;
};

/// Other modules are taken for ones that map a tensor to a tensor.
/// torch::nn::Sequential is one, and check_forward() refuses the rest.
template <class M>
struct ForwardTraits : MethodTraits<torch::Tensor (M::*)(torch::Tensor)> {};
template <HasOneForward M>
struct ForwardTraits<M> : MethodTraits<decltype(&M::forward)> {};

template <class M>
constexpr bool check_forward() {
  static_assert(
      HasOneForward<M> || std::is_same_v<M, torch::nn::SequentialImpl>,
      "the module needs one forward() that is neither overloaded nor a "
      "template: wrap a class that has the module as a member and, for "
      "example, torch::Tensor forward(torch::Tensor x)");
  return true;
}

template <class M>
using ForwardResult = typename ForwardTraits<M>::Result;
template <class M>
using ForwardArguments = typename ForwardTraits<M>::Arguments;

template <class T>
T from_ivalue(const c10::IValue& value) {
  if constexpr (std::is_same_v<T, c10::IValue>) {
    return value;
  } else {
    return value.to<T>();
  }
}

template <class M, size_t... I>
c10::IValue call_forward(M& module, const std::vector<c10::IValue>& inputs,
                         std::index_sequence<I...>) {
  using Arguments = ForwardArguments<M>;
  TORCH_CHECK(inputs.size() == sizeof...(I), "forward takes ", sizeof...(I),
              " arguments, got ", inputs.size());
  return c10::IValue(module.forward(
      from_ivalue<std::tuple_element_t<I, Arguments>>(inputs[I])...));
}

/// Calls module.forward() with the values of `inputs`.
template <class M>
c10::IValue call_forward(M& module, const std::vector<c10::IValue>& inputs) {
  return call_forward(
      module, inputs,
      std::make_index_sequence<std::tuple_size_v<ForwardArguments<M>>>());
}

/// True for types whose values may hold tensors that are shared(). They must
/// not be converted to forward's own argument type before they are scattered.
template <class T>
inline constexpr bool kMayHoldShared =
    std::is_same_v<T, c10::IValue> ||
    !std::is_same_v<typename Unshared<T>::Type, T>;

/// Returns `value` as an IValue of type `Argument`, converted as in a direct
/// call.
template <class Argument, class Value>
c10::IValue pack_one(Value&& value) {
  if constexpr (kMayHoldShared<std::decay_t<Value>>) {
    return c10::IValue(std::forward<Value>(value));
  } else {
    return c10::IValue(static_cast<Argument>(std::forward<Value>(value)));
  }
}

/// Returns `values` as IValues of forward's own argument types.
template <class Arguments, size_t... I, class... Values>
std::vector<c10::IValue> pack(std::index_sequence<I...>, Values&&... values) {
  return {pack_one<std::tuple_element_t<I, Arguments>>(
      std::forward<Values>(values))...};
}

/// Returns `value` in the form that a module without a wrapper takes. A Shared
/// converts to its tensor implicitly.
template <class Value>
decltype(auto) plain(Value&& value) {
  if constexpr (std::is_same_v<std::decay_t<Value>, c10::IValue>) {
    return unshared(value);
  } else {
    return std::forward<Value>(value);
  }
}

/// Returns `inputs` in the form that a module without a wrapper takes.
inline std::vector<c10::IValue> unshared_inputs(
    std::vector<c10::IValue> inputs) {
  for (c10::IValue& input : inputs) input = unshared(input);
  return inputs;
}

}  // namespace lockstep::detail
