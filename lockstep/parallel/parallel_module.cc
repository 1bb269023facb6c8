#include "lockstep/parallel/parallel_module.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

using torch::jit::Module;

DataParallelOptions detail::for_one_rank(DataParallelOptions options) {
  const int ranks = options.process_group().size();
  if (ranks == 1) return options;
  throw InvalidArgument(
      "parallel",
      {.code = ErrorCode::kBadOption,
       .what = "DataParallel runs a module on the devices of one rank",
       .expected = "a process group of one rank, or none",
       .got = fmt::format("a process group of {} ranks", ranks),
       .fix = "use DistributedDataParallel(module, group): its train_step() "
              "gives the same bits"});
}

std::vector<torch::Tensor> ParallelModule<Module>::parameters() const {
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module_.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace lockstep
