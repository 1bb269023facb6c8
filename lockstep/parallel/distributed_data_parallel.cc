#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {

using torch::Tensor;
using torch::jit::Module;

DistributedDataParallelBase::DistributedDataParallelBase(
    const World& world, ModuleHandle module,
    const DistributedDataParallelOptions& options)
    : dim_(options.dim()),
      reducer_(ddp::Reducer::create(world, std::move(module), options)) {}

int64_t DistributedDataParallelBase::samples_of(
    const c10::IValue& inputs) const {
  int64_t samples = -1;
  for_each_tensor(inputs, [&](const Tensor& tensor, const std::string&) {
    if (samples >= 0) return;
    samples = dim_ < tensor.dim() ? tensor.size(dim_) : 1;
  });
  return samples < 0 ? 1 : samples;
}

c10::IValue DistributedDataParallelBase::run(
    int64_t samples, const std::function<c10::IValue()>& forward) {
  const uint64_t begin = reducer_->begin_forward();
  const c10::IValue output = forward();
  reducer_->end_forward(begin, samples);
  return map_tensors(output, [&](const Tensor& tensor) {
    return reducer_->watch(tensor, samples);
  });
}

DistributedDataParallelImpl<Module>::DistributedDataParallelImpl(
    const Module& module, const World& world,
    const DistributedDataParallelOptions& options)
    : DistributedDataParallelBase(world, handle_of(module), options),
      module_(module) {}

c10::IValue DistributedDataParallelImpl<Module>::forward(
    const std::vector<c10::IValue>& inputs) {
  if (!torch::GradMode::is_enabled()) return module_.forward(inputs);
  return run(samples_of(c10::ivalue::Tuple::create(inputs)),
             [&] { return module_.forward(inputs); });
}

std::vector<Tensor> DistributedDataParallelImpl<Module>::parameters() const {
  std::vector<Tensor> parameters;
  for (const Tensor& parameter : module_.parameters()) {
    parameters.push_back(parameter);
  }
  return parameters;
}

}  // namespace lockstep
