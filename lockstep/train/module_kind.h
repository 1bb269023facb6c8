#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>

#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/module/script_scope.h"
#include "lockstep/parallel/parallel_module.h"

// Type traits of what a Trainer takes: modules and losses.
namespace lockstep::training {

namespace detail {

/// The argument types of `F`, a function object with two arguments and a single
/// operator(); tensors for a generic lambda.
template <class F, class = void>
struct LossArguments {
  using First = torch::Tensor;
  using Second = torch::Tensor;
};
template <class R, class C, class A, class B>
struct LossArguments<R (C::*)(A, B) const> {
  using First = std::decay_t<A>;
  using Second = std::decay_t<B>;
};
template <class R, class C, class A, class B>
struct LossArguments<R (C::*)(A, B)> : LossArguments<R (C::*)(A, B) const> {};
template <class F>
struct LossArguments<F, std::void_t<decltype(&F::operator())>>
    : LossArguments<decltype(&F::operator())> {};

/// Returns a shared_ptr<M>. Also takes the holder of a TORCH_MODULE.
template <class M>
std::shared_ptr<M> pointer_to(std::shared_ptr<M> module) {
  return module;
}
template <class M>
std::shared_ptr<M> pointer_to(const torch::nn::ModuleHolder<M>& module) {
  return module.ptr();
}
inline std::shared_ptr<torch::jit::Module> pointer_to(
    const torch::jit::Module& module) {
  return std::make_shared<torch::jit::Module>(module);
}

/// A module of type `M`. Its forward() determines its arguments and output.
template <class M>
struct ModuleKind {
  using Make = std::function<std::shared_ptr<M>()>;

  /// The type of the output. `Argument` is the type that a loss takes.
  template <class Argument>
  using Output = std::decay_t<lockstep::detail::ForwardResult<M>>;
  static constexpr size_t kArguments =
      std::tuple_size_v<lockstep::detail::ForwardArguments<M>>;

  /// Returns true if clone() copies `module`. A class that derives from one
  /// that is Cloneable has the clone() of its base class.
  static bool is_cloned(const M& module) {
    return std::is_base_of_v<torch::nn::Cloneable<M>, M> &&
           typeid(module) == typeid(M);
  }
  static Make replicator(const std::shared_ptr<M>& module, const Make& make) {
    return is_cloned(*module) ? lockstep::detail::cloner_of(module) : make;
  }
  /// Scope of what a step calls of a module. Nothing to do for this kind.
  struct StepScope {};

  static ModuleHandle handle(const std::shared_ptr<M>& module) {
    return lockstep::detail::typed_handle(module);
  }
};

/// A TorchScript module. Its arguments and output are known only at run time.
template <>
struct ModuleKind<torch::jit::Module> {
  using Module = torch::jit::Module;
  using Make = std::function<std::shared_ptr<Module>()>;

  template <class Argument>
  using Output = Argument;
  /// 0: as many arguments as a sample has inputs.
  static constexpr size_t kArguments = 0;

  static Make replicator(const std::shared_ptr<Module>& module, const Make&) {
    return [module] { return std::make_shared<Module>(clone_module(*module)); };
  }
  using StepScope = ScriptScope;

  static ModuleHandle handle(const std::shared_ptr<Module>& module) {
    return handle_of(*module);
  }
};

}  // namespace detail

}  // namespace lockstep::training
