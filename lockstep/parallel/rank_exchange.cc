#include "lockstep/parallel/rank_exchange.h"

#include "lockstep/parallel/message_exchange.h"
#include "lockstep/parallel/shared_exchange.h"
#include "lockstep/parallel/verify_ranks.h"

namespace lockstep {

void meet(const World& world) {
  const TraceSpan span("wait", TraceCategory::kWait);
  world.barrier();
}

std::unique_ptr<RankExchange> make_rank_exchange(
    const World& world, const ModuleHandle& module,
    const std::vector<torch::Tensor>& parameters, int64_t shards,
    const std::vector<Device>& devices) {
  verify_ranks(world, module);
  if (world.can_share_memory()) {
    return std::make_unique<SharedExchange>(world, module, parameters, shards,
                                            devices);
  }
  return std::make_unique<MessageExchange>(
      world, module, parameters, shards, static_cast<int64_t>(devices.size()));
}

}  // namespace lockstep
