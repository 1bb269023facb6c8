// Our backend under classes of c10d's own, as PyTorch uses them.

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "lockstep/comm/process_group.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;
using Future = c10::ivalue::Future;
using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

GroupPtr group_of(const ProcessGroup& world) {
  using c10d::ProcessGroup;
  auto group = c10::make_intrusive<ProcessGroup>(world.store(), world.rank(),
                                                 world.size());
  group->setBackend(torch::kCPU, ProcessGroup::CUSTOM, world.backend());
  group->setDefaultBackend(ProcessGroup::CUSTOM);
  return group;
}

/// Returns whether memory is mapped from a memfd, as all memory shared by ranks
/// is.
bool is_in_shared_memory(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (begin <= at && at < end) {
      return line.find("/memfd:") != std::string::npos;
    }
  }
  return false;
}

/// In the manner of PyTorch's PowerSGD: two sums in the callbacks of a first,
/// each waited for there.
class NestedSums : public c10d::CppCommHookInterface<const ProcessGroup*> {
 public:
  using CppCommHookInterface::CppCommHookInterface;

  c10::intrusive_ptr<Future> runHook(c10d::GradBucket& bucket) override {
    const ProcessGroup& world = *state_;
    is_resident = is_in_shared_memory(bucket.getBufferRef().data_ptr());
    // A third of the gradient in each of three sums.
    const at::Tensor part = bucket.getBufferRef() / (3.0 * world.size());
    Tensors list{part.clone()};
    const auto add = [&world, part](Future& future) {
      Tensors next{part.clone()};
      const auto sum = world.backend()->allreduce(next, {})->getFuture();
      sum->wait();
      return c10::IValue(Tensors{future.value().toTensorVector()[0] +
                                 sum->value().toTensorVector()[0]});
    };
    const auto type = c10::ListType::create(c10::TensorType::get());
    return world.backend()
        ->allreduce(list, {})
        ->getFuture()
        ->then(add, type)
        ->then(add, type);
  }

  inline static thread_local bool is_resident = false;
};

/// Two layers, and the gradients that all ranks' samples give together.
struct Layers {
  Layers() {
    auto generator = at::detail::createCPUGenerator(7);
    for (const std::vector<int64_t>& sizes :
         std::vector<std::vector<int64_t>>{{30, 20}, {20, 5}}) {
      parameters.push_back(torch::randn(sizes, generator, torch::kFloat64)
                               .set_requires_grad(true));
    }
  }
  at::Tensor loss(int rank, int step) const {
    auto generator = at::detail::createCPUGenerator(
        static_cast<uint64_t>(100 * step + rank));
    const at::Tensor inputs = torch::randn({4, 30}, generator, torch::kFloat64);
    return inputs.mm(parameters[0]).tanh().mm(parameters[1]).square().mean();
  }
  Tensors parameters;
};

const RankTasks c10d_reducer("c10d_reducer", [](const ProcessGroup& world) {
  if (world.size() == 1) return;
  for (const bool has_hook : {false, true}) {
    Layers layers;
    c10d::Reducer reducer(layers.parameters, {{1}, {0}}, group_of(world),
                          {false, false}, 1 << 20, false, true, {}, 1 << 20,
                          false, false, {});
    if (has_hook) {
      reducer.register_comm_hook(std::make_unique<NestedSums>(&world));
    }
    for (int step = 0; step < 4; ++step) {
      Layers plain;
      at::Tensor mean = torch::zeros({}, torch::kFloat64);
      for (int r = 0; r < world.size(); ++r) mean = mean + plain.loss(r, step);
      (mean / world.size()).backward();
      reducer.prepare_for_forward();
      const at::Tensor loss = layers.loss(world.rank(), step);
      reducer.prepare_for_backward({loss});
      loss.backward();
      for (size_t p = 0; p < 2; ++p) {
        require(torch::allclose(layers.parameters[p].grad(),
                                plain.parameters[p].grad(), 1e-12, 1e-14),
                "the gradients of c10d's Reducer");
        layers.parameters[p].mutable_grad().reset();
      }
    }
    // The Reducer asks for its buckets' memory if it is told to.
    const char* disabled = std::getenv("DDP_DISABLE_COMM_MEM");
    const bool is_asked = disabled != nullptr && std::string(disabled) == "0";
    require(!has_hook || NestedSums::is_resident ==
                             (is_asked && world.backend_name() == "shm"),
            "whether the buckets are in shared memory");
  }
});

// The wrapper that TORCH_DISTRIBUTED_DEBUG=DETAIL puts around every backend.
const RankTasks c10d_debug_detail(
    "c10d_debug_detail", [](const ProcessGroup& world) {
      if (world.size() == 1) return;
      // The wrapper sends its own messages over a backend of its own.
      std::vector<int> all_ranks;
      for (int rank = 0; rank < world.size(); ++rank) all_ranks.push_back(rank);
      const auto detail = world.new_group(all_ranks)->backend();
      const uint64_t before = world.backend()->getSequenceNumberForGroup();
      c10d::ProcessGroupWrapper wrapper(world.backend(), detail);
      wrapper.setSequenceNumberForGroup();
      Tensors list{torch::full({9}, world.rank() + 1.0)};
      wrapper.allreduce(list, {})->wait();
      require(torch::equal(
                  list[0],
                  torch::full({9}, world.size() * (world.size() + 1) / 2.0)),
              "an all_reduce through c10d's ProcessGroupWrapper");
      wrapper.barrier({})->wait();
      require(wrapper.getSequenceNumberForGroup() == before + 2,
              "the sequence number");
      require(wrapper.getBackendOptions()->timeout == world.timeout(),
              "the options of the backend");
      wrapper.monitoredBarrier({}, true);
      if (world.rank() == 0) {
        // A shape of its own: found by c10d before our backend is called.
        Tensors odd{torch::ones({3})};
        bool has_thrown = false;
        try {
          wrapper.allreduce(odd, {});
        } catch (const std::exception& error) {
          has_thrown =
              std::string(error.what()).find("ALLREDUCE") != std::string::npos;
        }
        require(has_thrown, "c10d finds another shape");
      } else {
        Tensors other{torch::ones({4})};
        try {
          wrapper.allreduce(other, {});
        } catch (const std::exception&) {
          return;
        }
        require(false, "c10d finds another shape on every rank");
      }
    });

}  // namespace
}  // namespace lockstep
