#include "lockstep/train/trainer.h"

namespace lockstep::train::detail {

c10::IValue pack_values(const LossAndMetrics& values) {
  c10::Dict<std::string, torch::Tensor> dict;
  dict.insert("loss", values.loss);
  for (const auto& [name, value] : values.metrics) dict.insert(name, value);
  return dict;
}

LossAndMetrics unpack_values(const c10::IValue& values) {
  const auto dict = c10::impl::toTypedDict<std::string, torch::Tensor>(
      values.toGenericDict());
  LossAndMetrics unpacked(dict.at("loss"));
  for (const auto& entry : dict) {
    if (entry.key() == "loss") continue;
    unpacked.metrics.emplace_back(entry.key(), entry.value());
  }
  return unpacked;
}

}  // namespace lockstep::train::detail
