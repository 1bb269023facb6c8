#include "lockstep/parallel/module_handle.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/script.h>

#include "lockstep/base/error.h"

namespace lockstep {

using torch::Tensor;

ModuleHandle handle_of(std::shared_ptr<torch::nn::Module> module) {
  ModuleHandle handle;
  for (const auto& item : module->named_parameters()) {
    handle.parameters.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module->named_buffers()) {
    handle.buffers.emplace_back(item.key(), item.value());
  }
  handle.modes = [module] {
    std::vector<bool> modes;
    for (const auto& part : module->modules()) {
      modes.push_back(part->is_training());
    }
    return modes;
  };
  handle.set_modes = [module](const std::vector<bool>& modes) {
    // Parents come first, so that a child's own mode has the last word.
    const auto parts = module->modules();
    for (size_t i = 0; i < parts.size() && i < modes.size(); ++i) {
      if (parts[i]->is_training() != modes[i]) parts[i]->train(modes[i]);
    }
  };
  return handle;
}

ModuleHandle handle_of(const torch::jit::Module& module) {
  ModuleHandle handle;
  for (const auto& item : module.named_parameters()) {
    handle.parameters.emplace_back(item.name, item.value);
  }
  for (const auto& item : module.named_buffers()) {
    handle.buffers.emplace_back(item.name, item.value);
  }
  // Modules are handles themselves: a copy shares the state.
  handle.forward = [module = torch::jit::Module(module)](
                       const std::vector<c10::IValue>& inputs) mutable {
    return module.forward(inputs);
  };
  handle.modes = [module] {
    return std::vector<bool>{!module.hasattr("training") ||
                             module.is_training()};
  };
  handle.set_modes = [module = torch::jit::Module(module)](
                         const std::vector<bool>& modes) mutable {
    if (module.hasattr("training") && module.is_training() != modes[0]) {
      module.train(modes[0]);
    }
  };
  return handle;
}

std::shared_ptr<torch::nn::Module> clone_module(
    const torch::nn::Module& module) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const Tensor state = [&] {
    std::lock_guard<std::mutex> guard(generator.mutex());
    return generator.get_state();
  }();
  std::shared_ptr<torch::nn::Module> copy;
  try {
    copy = module.clone();
  } catch (const c10::Error& error) {
    throw InvalidArgument(
        "parallel",
        {.what = "the module " + module.name() + " can't be cloned (" +
                 error.what_without_backtrace() + ")",
         .fix = "derive it from torch::nn::Cloneable and register parameters "
                "in reset(), or pass a factory: DataParallel(module, [] { "
                "return std::make_shared<...>(); }, devices)"});
  }
  std::lock_guard<std::mutex> guard(generator.mutex());
  generator.set_state(state);
  return copy;
}

torch::jit::Module clone_module(const torch::jit::Module& module) {
  return module.deepcopy();
}

}  // namespace lockstep
