#include "lockstep/train/memory_format.h"

namespace lockstep::train {

void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(
        parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
}

std::function<std::shared_ptr<models::Model>()> model_factory(
    const models::ModelSpec& spec, bool channels_last) {
  return [spec, channels_last] {
    auto model = models::make(spec);
    if (channels_last) to_channels_last(*model);
    return model;
  };
}

}  // namespace lockstep::train
