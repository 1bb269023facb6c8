#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

// Between typed forward() methods and IValues, the form in which batches are
// scattered and outputs gathered.
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

template <class M>
using ForwardTraits = MethodTraits<decltype(&M::forward)>;
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

/// Calls module.forward() with what `inputs` hold.
template <class M>
c10::IValue call_forward(M& module, const std::vector<c10::IValue>& inputs) {
  return call_forward(
      module, inputs,
      std::make_index_sequence<std::tuple_size_v<ForwardArguments<M>>>());
}

/// `values` as the IValues of forward's own argument types, so that what is
/// passed converts as in a direct call.
template <class Arguments, size_t... I, class... Values>
std::vector<c10::IValue> pack(std::index_sequence<I...>, Values&&... values) {
  return {c10::IValue(static_cast<std::tuple_element_t<I, Arguments>>(
      std::forward<Values>(values)))...};
}

}  // namespace lockstep::detail
