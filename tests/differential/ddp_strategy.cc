#include "tests/differential/ddp_strategy.h"

namespace lockstep::differential {

namespace {

DistributedDataParallelOptions options_of(const Case& of) {
  DistributedDataParallelOptions options;
  options.find_unused_parameters(of.finds_unused)
      .static_graph(of.is_static)
      .gradient_as_bucket_view(of.has_bucket_views)
      .average(of.kind == "world" || of.average == "ranks"
                   ? GradientAverage::kRanks
                   : GradientAverage::kSamples)
      .device(Device{})
      .shards(of.shards)
      .seed(of.seed)
      .intra_op_threads(1)
      .verify(of.verifies ? Verify::kDoubling : Verify::kNever);
  if (of.has_small_buckets) options.bucket_cap_mb(0.00003);
  return options;
}

}  // namespace

DdpStrategy::DdpStrategy(const std::shared_ptr<InterpretedModule>& module,
                         const ProcessGroup& world)
    : WrappedStrategy(module, world,
                      {module, factory_of(module), world,
                       options_of(*module->definition)}) {}

}  // namespace lockstep::differential
