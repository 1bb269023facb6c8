#include "lockstep/parallel/module/replicate.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/device.h"
#include "lockstep/device/memory.h"
#include "lockstep/device/tensor_device.h"

namespace lockstep {

using torch::Tensor;

void to(torch::nn::Module& module, const Device& device) {
  if (!device.is_cpu()) {
    module.to(torch_device(device));
    return;
  }
  install_accounting_allocator();
  const MemoryScope scope(device);
  torch::NoGradGuard no_grad;
  const auto move = [&](Tensor& tensor) {
    const auto place = device_of(tensor);
    if (!tensor.defined() || (place && *place == device)) return;
    Tensor copy = torch::empty_like(tensor.detach(), torch::kCPU);
    copy.copy_(tensor);
    tensor.set_data(copy);
  };
  for (Tensor& parameter : module.parameters()) move(parameter);
  for (Tensor& buffer : module.buffers()) move(buffer);
}

void detail::check_on_device(const ModuleHandle& module, const Device& device) {
  const auto check = [&](const char* kind, const auto& named) {
    for (const auto& [name, tensor] : named) {
      const auto place = device_of(tensor);
      const bool ok =
          place ? place->type == device.type && place->index == device.index
                : device.is_cpu() && tensor.is_cpu();
      if (ok) continue;
      throw InvalidArgument(
          "parallel",
          {.code = ErrorCode::kMixedDevices,
           .what =
               fmt::format("{} '{}' is not on the first device", kind, name),
           .expected = device.name() + ", the first of the devices",
           .got = place ? place->name() : tensor.device().str(),
           .fix = "call lockstep::to(*model, devices[0]) before wrapping the "
                  "model"});
    }
  };
  check("parameter", module.parameters);
  check("buffer", module.buffers);
}

}  // namespace lockstep
