#include "lockstep/parallel/module/module_source.h"

namespace lockstep {

ModuleSource engine_module(const torch::jit::Module& module) {
  return {.read = [module] { return handle_of(module); },
          .replicate = [module] { return handle_of(clone_module(module)); }};
}

}  // namespace lockstep
