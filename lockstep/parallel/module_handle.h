#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/torch.h>

namespace torch::jit {
struct Module;
}

namespace lockstep {

/// A module as the parallel region sees it, whatever it was made from: C++ or
/// TorchScript.
struct ModuleHandle {
  using Named = std::vector<std::pair<std::string, torch::Tensor>>;

  Named parameters;
  Named buffers;
  std::function<c10::IValue(const std::vector<c10::IValue>&)> forward;
  /// Training or evaluation, of the module and each of its submodules.
  std::function<std::vector<bool>()> modes;
  std::function<void(const std::vector<bool>&)> set_modes;
};

/// Reads everything but `forward` from a C++ module, and keeps it alive.
ModuleHandle handle_of(std::shared_ptr<torch::nn::Module> module);
ModuleHandle handle_of(const torch::jit::Module& module);

/// A deep copy. Throws InvalidArgument for a module that is not Cloneable,
/// saying what to do. Leaves the random stream as it was.
std::shared_ptr<torch::nn::Module> clone_module(
    const torch::nn::Module& module);
torch::jit::Module clone_module(const torch::jit::Module& module);

}  // namespace lockstep
