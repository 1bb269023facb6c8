#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/script.h>
#include <torch/types.h>

#include "lockstep/parallel/module/member_watch.h"

namespace lockstep {

/// A type-erased module as the parallel code sees it, made from C++ or
/// TorchScript.
struct ModuleHandle {
  using Named = std::vector<std::pair<std::string, torch::Tensor>>;
  /// A submodule and its type, with the options that it prints.
  using Part = std::pair<std::string, std::string>;
  using Members = std::vector<std::optional<c10::IValue>>;

  /// Name of the module's class.
  std::string type;
  Named parameters;
  Named buffers;
  std::function<c10::IValue(const std::vector<c10::IValue>&)> forward;
  /// Training or evaluation mode, of the module and each of its submodules.
  std::function<std::vector<bool>()> modes;
  std::function<void(const std::vector<bool>&)> set_modes;
  /// The submodules, to be compared with those of another module.
  std::function<std::vector<Part>()> parts;
  /// Addresses that change when a submodule or a tensor is replaced. The other
  /// members of this handle are out of date then.
  std::function<std::vector<const void*>()> identity;
  /// TorchScript: the attributes by index. Those that are tensors or modules
  /// have no value here. Null for C++.
  std::function<Members()> members;
  std::function<void(const Members&)> set_members;
  /// C++: the bytes of the module object that belong to its own class, if that
  /// class is known.
  MemberWatch::Object object;
  /// C++: the module; null for TorchScript.
  std::shared_ptr<torch::nn::Module> module;
};

namespace detail {
/// Returns the bytes of a torch::nn::Module without its padding, which may hold
/// the first members of a derived class.
size_t bytes_of_base();
}  // namespace detail

/// Reads everything but `forward` from a C++ module, and keeps it alive.
ModuleHandle handle_of(std::shared_ptr<torch::nn::Module> module);
ModuleHandle handle_of(const torch::jit::Module& module);

/// Returns a deep copy of the module's own type. Throws InvalidArgument for a
/// module that is not Cloneable, and for one whose clone() makes another type
/// because only a base class is Cloneable. Leaves the random stream unchanged.
std::shared_ptr<torch::nn::Module> clone_module(
    const torch::nn::Module& module);
torch::jit::Module clone_module(const torch::jit::Module& module);

/// Same, as a pointer to `M`.
template <class M>
std::shared_ptr<M> clone_as(const M& module) {
  return std::dynamic_pointer_cast<M>(clone_module(module));
}

}  // namespace lockstep
