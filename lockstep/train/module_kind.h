#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <typeinfo>

#include <torch/nn/cloneable.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/parallel/module/script_scope.h"
#include "lockstep/parallel/parallel_module.h"

// The operations of a Trainer that depend on the type of its module.
namespace lockstep::train::detail {

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
  static Engine::Module engine_module(const std::shared_ptr<M>& module,
                                      const Make& make) {
    return lockstep::engine_module<M>(module, replicator(module, make));
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
  static Engine::Module engine_module(const std::shared_ptr<Module>& module,
                                      const Make&) {
    return lockstep::engine_module(*module);
  }
  using StepScope = ScriptScope;

  static ModuleHandle handle(const std::shared_ptr<Module>& module) {
    return handle_of(*module);
  }
};

}  // namespace lockstep::train::detail
