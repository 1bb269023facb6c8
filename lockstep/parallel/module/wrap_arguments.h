#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <vector>

#include <torch/nn/module.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/device/device.h"

// Arguments that DataParallel and DistributedDataParallel can be made from, and
// compile errors of one sentence for others.
namespace lockstep::detail {

template <class T>
inline constexpr bool kNever = false;

template <class T>
concept Holder = requires {
  typename T::ContainedType;
};

/// Type of the module that a wrapper of a `T` is for: M of std::shared_ptr<M>
/// and of a holder that TORCH_MODULE makes. A module itself can't be wrapped,
/// which check_module() explains.
template <class T>
struct Wrapped;
template <std::derived_from<torch::nn::Module> M>
struct Wrapped<M> {
  using Module = M;
};
template <class M>
struct Wrapped<std::shared_ptr<M>> {
  using Module = M;
};
template <Holder H>
struct Wrapped<H> {
  using Module = typename H::ContainedType;
};
template <>
struct Wrapped<torch::jit::Module> {
  using Module = torch::jit::Module;
};

/// A function that makes another module like the wrapped one.
template <class F, class M>
concept FactoryOf = std::invocable<const F&> &&
    std::convertible_to<std::invoke_result_t<const F&>, std::shared_ptr<M>>;

/// First arguments of a constructor that does not exist: `T` is a module rather
/// than a pointer to one, or what follows is neither a `Wanted` nor a factory.
template <class T, class Next, class Wanted, class M>
concept WrongArguments = std::derived_from<T, torch::nn::Module> ||
    (!std::convertible_to<Next, Wanted> && !FactoryOf<Next, M>);

/// Does not compile if `T` is a module rather than a pointer to one.
template <class T>
constexpr void check_module() {
  static_assert(!std::derived_from<T, torch::nn::Module>,
                "the first argument must be a std::shared_ptr to the module, "
                "std::make_shared<Net>(...), or its holder (TORCH_MODULE)");
}

}  // namespace lockstep::detail
