#include "tests/differential/ddp_strategy.h"

namespace lockstep::differential {

namespace {

DistributedDataParallelOptions options_of(const Case& of) {
  DistributedDataParallelOptions options;
  options.find_unused_parameters(of.finds_unused)
      .static_graph(of.is_static)
      .gradient_as_bucket_view(of.has_bucket_views)
      .average(of.average == "ranks"  ? GradientAverage::kRanks
               : of.average == "none" ? GradientAverage::kNone
                                      : GradientAverage::kSamples);
  if (of.has_small_buckets) options.bucket_cap_mb(0.00003);
  return options;
}

}  // namespace

DdpStrategy::DdpStrategy(std::shared_ptr<InterpretedModule> module,
                         const World& world)
    : Strategy(module),
      world_(world),
      model_(module, world, options_of(*module->definition)) {}

Strategy::Step DdpStrategy::backward(const Batch& batch) {
  const Batch own = own_part(batch);
  return backward_of(definition(), module(),
                     model_->forward(own.nested_inputs(definition())), own);
}

c10::IValue DdpStrategy::forward(const Batch& batch) {
  return model_->forward(batch.nested_inputs(definition()));
}

Batch DdpStrategy::own_part(const Batch& batch) const {
  auto sizes = chunks_of(batch.samples, definition().shards);
  sizes.resize(static_cast<size_t>(definition().shards), 0);
  int64_t begin = 0;
  for (int rank = 0; rank < world_.rank(); ++rank) {
    begin += sizes[static_cast<size_t>(rank)];
  }
  return batch.part(begin, sizes[static_cast<size_t>(world_.rank())])
      .detached();
}

}  // namespace lockstep::differential
