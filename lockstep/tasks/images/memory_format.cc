#include "lockstep/tasks/images/memory_format.h"

#include "lockstep/parallel/parallel_module.h"

namespace lockstep::tasks {
namespace {

/// Gives every 4-d parameter (a convolution's weight) the channels_last
/// layout, as PyTorch's module.to(memory_format=...) does.
void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(
        parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

}  // namespace

bool prefers_channels_last(const models::ModelSpec& spec,
                           const std::vector<Device>& devices) {
  return spec.name != "mlp" && devices.front().is_cpu();
}

std::shared_ptr<models::Model> make_laid_out(const models::ModelSpec& spec,
                                             bool channels_last,
                                             models::Init init) {
  auto model = models::make(spec, init);
  if (channels_last) to_channels_last(*model);
  return model;
}

ModuleSource module_of(const std::shared_ptr<models::Model>& model,
                       const models::ModelSpec& spec, bool channels_last) {
  return engine_module<models::Model>(model, [spec, channels_last] {
    return make_laid_out(spec, channels_last, models::Init::kNone);
  });
}

}  // namespace lockstep::tasks
