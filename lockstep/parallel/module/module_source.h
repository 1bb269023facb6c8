#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/script.h>

#include "lockstep/parallel/module/invoke.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep {

/// Access to a module without its type: `read` reads its current state, and
/// `replicate` makes a module like it.
struct ModuleSource {
  std::function<ModuleHandle()> read;
  std::function<ModuleHandle()> replicate;
};

namespace detail {

/// Returns a function that copies `module`. It throws InvalidArgument if the
/// module is not a torch::nn::Cloneable of its own type.
template <class M>
std::function<std::shared_ptr<M>()> cloner_of(std::shared_ptr<M> module) {
  return [module = std::move(module)] { return clone_as(*module); };
}

/// Returns the bytes of `module` without those of its base torch::nn::Module.
template <class M>
MemberWatch::Object object_of(const M& module) {
  const auto* begin = reinterpret_cast<const std::byte*>(&module);
  const auto* base = reinterpret_cast<const std::byte*>(
      static_cast<const torch::nn::Module*>(&module));
  const std::byte* const end = begin + sizeof(M);
  return {{begin, base}, {std::min(base + bytes_of_base(), end), end}};
}

template <class M>
ModuleHandle typed_handle(std::shared_ptr<M> module) {
  ModuleHandle handle = handle_of(module);
  handle.forward = [module](const std::vector<c10::IValue>& inputs) {
    return call_forward(*module, inputs);
  };
  handle.object = object_of(*module);
  return handle;
}

}  // namespace detail

/// Returns a module in the form that the engine takes. `factory` makes others
/// like it.
template <class M>
ModuleSource engine_module(const std::shared_ptr<M>& module,
                           const std::function<std::shared_ptr<M>()>& factory) {
  return {.read = [module] { return detail::typed_handle(module); },
          .replicate = [factory] { return detail::typed_handle(factory()); }};
}
/// Same, for a TorchScript module.
inline ModuleSource engine_module(const torch::jit::Module& module) {
  return {.read = [module] { return handle_of(module); },
          .replicate = [module] { return handle_of(clone_module(module)); }};
}

}  // namespace lockstep
