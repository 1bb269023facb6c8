#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

/// A rank of several devices, as a training run has them. It makes steps, and
/// has no loops of the user's own.
template <class M>
class OverRanksImpl : public ParallelModule<M> {
 public:
  OverRanksImpl(const std::shared_ptr<M>& module,
                const std::function<std::shared_ptr<M>()>& factory,
                std::vector<Device> devices, DataParallelOptions options)
      : ParallelModule<M>(module, factory, std::move(devices),
                          std::move(options)) {}

  /// Runs the replicas of this rank, without a graph.
  template <class... Inputs>
  typename ParallelModule<M>::Output forward(Inputs&&... inputs) {
    const torch::NoGradGuard no_grad;
    return detail::from_ivalue<typename ParallelModule<M>::Output>(
        Engine::forward(
            ParallelModule<M>::pack(std::forward<Inputs>(inputs)...)));
  }
};

template <class M>
class OverRanks : public detail::WrapperHolder<OverRanksImpl<M>> {
  using Impl = OverRanksImpl<M>;
  using Holder = detail::WrapperHolder<Impl>;

 public:
  OverRanks(std::shared_ptr<M> module,
            const std::function<std::shared_ptr<M>()>& factory,
            std::vector<Device> devices, DataParallelOptions options)
      : Holder(std::make_shared<Impl>(module, factory, std::move(devices),
                                      std::move(options))) {}
  OverRanks(std::shared_ptr<M> module, std::vector<Device> devices,
            DataParallelOptions options)
      : OverRanks(module, detail::cloner_of(module), std::move(devices),
                  std::move(options)) {}
  OverRanks(const torch::nn::ModuleHolder<M>& module,
            std::vector<Device> devices, DataParallelOptions options)
      : OverRanks(module.ptr(), std::move(devices), std::move(options)) {}
};

}  // namespace lockstep
