#include "tests/differential/data_parallel_strategy.h"

namespace lockstep::differential {

namespace {

std::vector<Device> devices_of(int64_t count, const ProcessGroup& world) {
  if (world.size() > 1) {
    return std::vector<Device>(static_cast<size_t>(count), Device{});
  }
  return lockstep::devices(std::to_string(count) + "xcpu", Duplicates::kRefuse,
                           Oversubscription::kAllow);
}

DataParallelOptions options_of(const Case& of, const ProcessGroup& world) {
  return DataParallelOptions()
      .shards(of.shards)
      .seed(of.seed)
      .intra_op_threads(1)
      .verify_first_step(of.verifies)
      .process_group(world);
}

}  // namespace

DataParallelStrategy::DataParallelStrategy(
    const std::shared_ptr<InterpretedModule>& module, int64_t devices,
    const ProcessGroup& world)
    : WrappedStrategy(module, world,
                      {module, factory_of(module), devices_of(devices, world),
                       options_of(*module->definition, world)}) {}

}  // namespace lockstep::differential
