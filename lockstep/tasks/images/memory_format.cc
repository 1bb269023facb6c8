#include "lockstep/tasks/images/memory_format.h"

namespace lockstep::tasks {

void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(
        parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

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

std::function<std::shared_ptr<models::Model>()> replica_factory(
    const models::ModelSpec& spec, bool channels_last) {
  return [spec, channels_last] {
    return make_laid_out(spec, channels_last, models::Init::kNone);
  };
}

}  // namespace lockstep::tasks
