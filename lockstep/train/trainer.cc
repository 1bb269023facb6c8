#include "lockstep/train/trainer.h"

namespace lockstep::train::detail {

namespace {

constexpr const char* kLoss = "loss";

using Numbers = c10::Dict<std::string, torch::Tensor>;

Numbers numbers_of(const c10::IValue& dict) {
  return c10::impl::toTypedDict<std::string, torch::Tensor>(
      dict.toGenericDict());
}

}  // namespace

// Packs values into two dicts: the means by name, and the weights that were
// stated.
c10::IValue pack_values(const LossAndMetrics& values) {
  Numbers means, weights;
  const auto insert = [&](const std::string& name, const torch::Tensor& mean,
                          const torch::Tensor& weight) {
    means.insert(name, mean);
    if (weight.defined()) weights.insert(name, weight);
  };
  insert(kLoss, values.loss, values.weight);
  for (const Metric& metric : values.metrics) {
    insert(metric.name, metric.mean, metric.weight);
  }
  return c10::ivalue::Tuple::create(means, weights);
}

LossAndMetrics unpack_values(const c10::IValue& values) {
  const auto& both = values.toTupleRef().elements();
  const Numbers means = numbers_of(both[0]), weights = numbers_of(both[1]);
  const auto weight_of = [&](const std::string& name) {
    return weights.contains(name) ? weights.at(name) : torch::Tensor();
  };
  LossAndMetrics unpacked(WeightedLoss(means.at(kLoss), weight_of(kLoss)));
  for (const auto& entry : means) {
    if (entry.key() == kLoss) continue;
    unpacked.metrics.emplace_back(entry.key(), entry.value(),
                                  weight_of(entry.key()));
  }
  return unpacked;
}

}  // namespace lockstep::train::detail
