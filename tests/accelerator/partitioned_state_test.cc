// An optimizer whose state is divided between devices has the bits of one whose
// state is on one device, and its state dict is the same.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/block_optimizer.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/functional.h"
#include "tests/accelerator/nets.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace partitioned_state {

using torch::Tensor;
using State = std::map<std::string, Tensor>;

std::unique_ptr<torch::optim::Optimizer> adamw(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(std::move(parameters), 0.01);
}
std::unique_ptr<torch::optim::Optimizer> momentum(
    std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.01).momentum(0.9));
}
using Make = decltype(&adamw);

UnevenNet made_net(const Device& device) {
  torch::manual_seed(3);
  // Its large layer has several blocks, which belong to different devices.
  UnevenNet net(32, 3000, 10);
  lockstep::to(*net, device);
  return net;
}

/// A net on several devices, with an optimizer whose state they divide.
struct Training {
  Training(const std::string& list, Make make)
      : devices(devices_of(list)), net(made_net(devices.front())) {
    optimizer = make(net->parameters());
    wrap();
  }
  void wrap() {
    model = std::make_unique<DataParallel<UnevenNetImpl>>(
        net, devices, wrap_options().seed(5).divide_state(true));
  }
  Batch batch(int64_t step) const {
    torch::manual_seed(static_cast<uint64_t>(100 + step));
    return {torch::randn({8, 32}), torch::randint(10, {8})};
  }
  void step(int64_t number) {
    const Batch data = batch(number);
    (*model)->set_step(number);
    (*model)->train_step(data.x, data.y, &class_loss, *optimizer);
  }
  /// Calls the optimizer's own step().
  void own_step(int64_t number) {
    const Batch data = batch(number);
    (*model)->set_step(number);
    (*model)->train_step(data.x, data.y, &class_loss);
    (*model)->unshare_parameters();
    optimizer->step();
    optimizer->zero_grad();
  }
  /// Returns the state of all devices.
  State state() const {
    (*model)->unshare_parameters();
    return optim::state_dict(*optimizer);
  }

  std::vector<Device> devices;
  UnevenNet net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<DataParallel<UnevenNetImpl>> model;
};

std::vector<Tensor> copies_of_parameters(const torch::nn::Module& net) {
  std::vector<Tensor> copies;
  for (const Tensor& parameter : net.parameters()) {
    copies.push_back(parameter.detach().cpu().clone());
  }
  return copies;
}
void set_parameters(const torch::nn::Module& net,
                    const std::vector<Tensor>& values) {
  const torch::NoGradGuard no_grad;
  const auto parameters = net.parameters();
  for (size_t i = 0; i < values.size(); ++i) parameters[i].copy_(values[i]);
}

void expect_equal(const State& state, const State& expected) {
  ASSERT_EQ(state.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(state.contains(name)) << name;
    EXPECT_TRUE(torch::equal(state.at(name).cpu(), tensor.cpu())) << name;
  }
}

TEST(PartitionedState, HasTheBitsOfOneDevice) {
  for (const Make make : {&adamw, &momentum}) {
    Training one("4xcpu", make), longer("4xcpu", make);
    for (int step = 0; step < 3; ++step) one.step(step);
    for (int step = 0; step < 4; ++step) longer.step(step);
    const State state_after_four = longer.state();
    for (const char* list : {"2xsim", "3xsim", "4xsim"}) {
      Training several(list, make);
      for (int step = 0; step < 3; ++step) several.step(step);
      EXPECT_EQ(digest_of(*several.net), digest_of(*one.net)) << list;
      expect_equal(several.state(), one.state());
      several.step(3);  // divides it again
      expect_equal(several.state(), state_after_four);
    }
  }
}

TEST(PartitionedState, BelongsToAllDevicesEqually) {
  const auto devices = devices_of("4xsim");
  const UnevenNet net = made_net(devices.front());
  torch::optim::AdamW torch(net->parameters());
  optim::BlockOptimizer optimizer(torch);
  optimizer.partition_state(devices);
  optimizer.follow();
  std::map<int, int64_t> elements;
  const auto& blocks = optimizer.blocks();
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto device = optimizer.device_of(static_cast<int64_t>(b));
    elements[device.index()] += blocks[b].length;
  }
  ASSERT_EQ(elements.size(), 4);
  for (const auto& [index, count] : elements) {
    EXPECT_NEAR(static_cast<double>(count), 129'010 / 4.0, 16 * 1024) << index;
  }
}

TEST(PartitionedState, AllowsTheOptimizersOwnStep) {
  for (const Make make : {&adamw, &momentum}) {
    Training one("4xcpu", make), several("3xsim", make);
    for (Training* each : {&one, &several}) {
      each->step(0);
      each->own_step(1);
      each->step(2);
      each->own_step(3);
    }
    EXPECT_EQ(digest_of(*several.net), digest_of(*one.net));
  }
}

TEST(PartitionedState, IsLoadedBeforeAndAfterItIsDivided) {
  Training one("4xcpu", &adamw);
  for (int step = 0; step < 2; ++step) one.step(step);
  State saved;
  for (const auto& [name, tensor] : one.state()) saved[name] = tensor.clone();
  const auto saved_net = copies_of_parameters(*one.net);
  for (int step = 2; step < 4; ++step) one.step(step);
  for (const bool is_divided : {false, true}) {
    Training several("4xsim", &adamw);
    if (is_divided) several.step(0);
    optim::load_state_dict(*several.optimizer, saved);
    set_parameters(*several.net, saved_net);
    for (int step = 2; step < 4; ++step) several.step(step);
    EXPECT_EQ(digest_of(*several.net), digest_of(*one.net)) << is_divided;
  }
}

TEST(PartitionedState, IsZeroBeforeTheFirstStep) {
  const auto devices = devices_of("4xsim");
  const UnevenNet net = made_net(devices.front());
  torch::optim::AdamW torch(net->parameters());
  optim::BlockOptimizer optimizer(torch);
  optimizer.partition_state(devices);
  optimizer.follow();
  EXPECT_FALSE(
      optim::find_state(torch, net->first->weight)->tensors[0]->defined());
  const State state = optimizer.state_dict();
  EXPECT_EQ(state.at("exp_avg.0").sizes(), net->first->weight.sizes());
  for (const auto& [name, tensor] : state) {
    EXPECT_FALSE(tensor.any().item<bool>()) << name;
  }
}

TEST(PartitionedState, CanBeDividedAgain) {
  Training one("4xcpu", &adamw);
  for (int step = 0; step < 6; ++step) one.step(step);
  Training several("4xsim", &adamw);
  int step = 0;
  // A wrapper with fewer devices, and one with a single device.
  for (const char* list : {"4xsim", "2xsim", "sim:0"}) {
    (*several.model)->unshare_parameters();
    several.devices = devices_of(list);
    several.wrap();
    for (const int end = step + 2; step < end; ++step) several.step(step);
  }
  EXPECT_EQ(digest_of(*several.net), digest_of(*one.net));
}

TEST(PartitionedState, IsMovedToFewerDevices) {
  const auto devices = devices_of("4xsim");
  const UnevenNet net = made_net(devices.front());
  torch::optim::AdamW torch(net->parameters());
  optim::BlockOptimizer optimizer(torch);
  State saved;
  for (const char* list : {"4xsim", "2xsim", "sim:0"}) {
    optimizer.partition_state(devices_of(list));
    optimizer.follow();
    if (saved.empty()) {
      saved = optimizer.state_dict();
      for (auto& [name, tensor] : saved) {
        tensor = torch::full_like(tensor, 3);
      }
      optimizer.load_state_dict(saved);
    }
    expect_equal(optimizer.state_dict(), saved);
    const auto count = static_cast<int64_t>(optimizer.blocks().size());
    for (int64_t b = 0; b < count; ++b) {
      EXPECT_LT(optimizer.device_of(b).index(),
                static_cast<int>(devices_of(list).size()));
    }
  }
}

// Neither torch::save() nor the optimizer's own step() would find it.
TEST(PartitionedState, IsMissedByAnotherWrapperUntilItIsReleased) {
  Training several("2xsim", &adamw);
  several.step(0);
  several.wrap();
  EXPECT_THROW(several.step(1), InvalidArgument);
}

TEST(PartitionedState, WorksWithParametersWithoutElements) {
  const auto device = c10::Device(kSim, 0);
  const std::vector<Tensor> parameters{
      torch::zeros({0}, device).requires_grad_(),
      torch::ones({3}, device).requires_grad_(),
      torch::zeros({2, 0}, device).requires_grad_()};
  torch::optim::AdamW torch(parameters, 0.01);
  optim::BlockOptimizer optimizer(torch);
  optimizer.partition_state(devices_of("2xsim"));
  optimizer.follow();
  for (const Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::ones_like(parameter.detach());
  }
  optimizer.step();
  EXPECT_LT(parameters[1].cpu().max().item<double>(), 1);
  const State state = optimizer.state_dict();
  EXPECT_EQ(state.at("exp_avg.2").sizes(), parameters[2].sizes());
  optimizer.load_state_dict(state);
}

// Ranks cut their messages at blocks, and tensors of other types follow.
TEST(PartitionedState, HasBlocksAtAlignedPlaces) {
  const auto options = torch::dtype(torch::kHalf).device(c10::Device(kSim, 0));
  const std::vector<Tensor> tensors{torch::empty({3'000'001}, options),
                                    torch::empty({5}, options)};
  const auto blocks = optim::cut_into_blocks(tensors);
  EXPECT_GT(blocks.size(), 30);
  EXPECT_LE(blocks.size(), 65);
  for (const optim::Block& block : blocks) {
    EXPECT_EQ(block.offset % optim::kBlockElements, 0);
  }
}

TEST(PartitionedState, IsRefusedForOtherDevices) {
  const auto host = devices_of("2xcpu"), sim = devices_of("2xsim");
  const UnevenNet on_host = made_net(host.front());
  torch::optim::AdamW torch(on_host->parameters());
  EXPECT_THROW(optim::BlockOptimizer(torch).partition_state(host),
               InvalidArgument);
  const UnevenNet on_sim = made_net(sim.front());
  torch::optim::AdamW other(on_sim->parameters());
  optim::BlockOptimizer optimizer(other);
  EXPECT_THROW(optimizer.partition_state(host), InvalidArgument);
  EXPECT_THROW(optimizer.partition_state({}), InvalidArgument);
}

}  // namespace partitioned_state
}  // namespace lockstep::sim
