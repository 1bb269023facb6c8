#include "tests/differential/data_parallel_strategy.h"

namespace lockstep::differential {

namespace {

DataParallelOptions data_parallel_options_of(const Case& of) {
  return DataParallelOptions()
      .shards(of.shards)
      .seed(of.seed)
      .intra_op_threads(1)
      .verify(of.verifies ? Verify::kDoubling : Verify::kNever);
}

}  // namespace

DataParallelStrategy::DataParallelStrategy(
    const std::shared_ptr<InterpretedModule>& module, int64_t devices)
    : WrappedStrategy(
          module, {},
          {module, factory_of(module),
           lockstep::devices(std::to_string(devices) + "xcpu",
                             Duplicates::kRefuse, Oversubscription::kAllow),
           data_parallel_options_of(*module->definition)}) {}

RankStrategy::RankStrategy(const std::shared_ptr<InterpretedModule>& module,
                           int64_t devices, const ProcessGroup& world)
    : WrappedStrategy(
          module, world,
          {module, factory_of(module),
           std::vector<Device>(static_cast<size_t>(devices), Device{}),
           data_parallel_options_of(*module->definition)
               .process_group(world)}) {}

}  // namespace lockstep::differential
