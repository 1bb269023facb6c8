#include "lockstep/comm/environment.h"
#include "lockstep/base/env.h"

namespace lockstep {
Environment read_environment() {
  Environment environment;
  if (!env("RANK") || !env("WORLD_SIZE")) return environment;
  environment.rank = static_cast<int>(*env_integer("RANK"));
  environment.world_size = static_cast<int>(*env_integer("WORLD_SIZE"));
  environment.local_rank = static_cast<int>(env_integer("LOCAL_RANK").value_or(0));
  environment.launcher = "torchrun";
  environment.run_id = env("TORCHELASTIC_RUN_ID").value_or("");
  environment.master_addr = env("MASTER_ADDR").value_or("127.0.0.1");
  environment.master_ports = {static_cast<uint16_t>(*env_integer("MASTER_PORT"))};
  environment.has_agent_store = env("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return environment;
}
}  // namespace lockstep
