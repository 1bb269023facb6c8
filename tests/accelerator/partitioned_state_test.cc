// An optimizer whose state is divided between devices has the bits of one whose
// state is on one device, and its state dict is the same.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/blocks.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/functional.h"
#include "tests/accelerator/nets.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace partitioned_state {

using torch::Tensor;
using State = std::map<std::string, Tensor>;

std::unique_ptr<optim::Optimizer> adamw(std::vector<Tensor> parameters) {
  return optim::adamw(std::move(parameters), optim::AdamWOptions(0.01));
}
std::unique_ptr<optim::Optimizer> momentum(std::vector<Tensor> parameters) {
  return optim::sgd(std::move(parameters),
                    optim::SGDOptions(0.01).momentum(0.9));
}
using Make = decltype(&adamw);

/// A net on several devices, with an optimizer.
struct Training {
  Training(const std::string& list, Make make)
      : devices(devices_of(list)), net(made_net(devices.front())) {
    optimizer = make(net->parameters());
    model = std::make_unique<DataParallel<UnevenNetImpl>>(
        net, devices, wrap_options().seed(5));
  }
  static UnevenNet made_net(const Device& device) {
    torch::manual_seed(3);
    // Its large layer has several blocks, which belong to different devices.
    UnevenNet net(32, 3000, 10);
    lockstep::to(*net, device);
    return net;
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
    optimizer->step();
    optimizer->zero_grad();
  }

  std::vector<Device> devices;
  UnevenNet net;
  std::unique_ptr<optim::Optimizer> optimizer;
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
    Training one("4xcpu", make);
    for (int step = 0; step < 3; ++step) one.step(step);
    for (const char* list : {"2xsim", "3xsim", "4xsim"}) {
      Training several(list, make);
      for (int step = 0; step < 3; ++step) several.step(step);
      EXPECT_EQ(digest_of(*several.net), digest_of(*one.net)) << list;
      expect_equal(several.optimizer->state_dict(),
                   one.optimizer->state_dict());
      EXPECT_EQ(several.optimizer->state_bytes(), one.optimizer->state_bytes());
    }
  }
}

TEST(PartitionedState, BelongsToAllDevicesEqually) {
  Training training("4xsim", &adamw);
  training.step(0);
  std::map<int, int64_t> elements;
  const auto& blocks = training.optimizer->blocks();
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto device = training.optimizer->device_of(static_cast<int64_t>(b));
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
  for (const auto& [name, tensor] : one.optimizer->state_dict()) {
    saved[name] = tensor.clone();
  }
  const auto saved_net = copies_of_parameters(*one.net);
  for (int step = 2; step < 4; ++step) one.step(step);
  for (const bool is_divided : {false, true}) {
    Training several("4xsim", &adamw);
    if (is_divided) several.step(0);
    several.optimizer->load_state_dict(saved);
    set_parameters(*several.net, saved_net);
    for (int step = 2; step < 4; ++step) several.step(step);
    EXPECT_EQ(digest_of(*several.net), digest_of(*one.net)) << is_divided;
  }
}

TEST(PartitionedState, IsZeroBeforeTheFirstStep) {
  Training training("4xsim", &adamw);
  const State state = training.optimizer->state_dict();
  const Tensor first = training.net->first->weight;
  EXPECT_EQ(state.at("exp_avg.0").sizes(), first.sizes());
  for (const auto& [name, tensor] : state) {
    EXPECT_FALSE(tensor.any().item<bool>()) << name;
  }
}

TEST(PartitionedState, CanBeDividedAgain) {
  Training one("4xcpu", &adamw);
  for (int step = 0; step < 6; ++step) one.step(step);
  Training several("4xsim", &adamw);
  several.step(0);
  several.step(1);
  const auto& optimizer = several.optimizer;
  // A wrapper with fewer devices, and one with a single device.
  for (const char* list : {"2xsim", "sim:0"}) {
    several.devices = devices_of(list);
    several.model = std::make_unique<DataParallel<UnevenNetImpl>>(
        several.net, several.devices, wrap_options().seed(5));
    for (int step = 0; step < 2; ++step) several.step(optimizer->steps());
    const auto count = static_cast<int64_t>(optimizer->blocks().size());
    for (int64_t b = 0; b < count; ++b) {
      EXPECT_LT(optimizer->device_of(b).index(),
                static_cast<int>(several.devices.size()));
    }
  }
  EXPECT_EQ(digest_of(*several.net), digest_of(*one.net));
}

TEST(PartitionedState, WorksWithParametersWithoutElements) {
  const auto device = c10::Device(kSim, 0);
  const std::vector<Tensor> parameters{
      torch::zeros({0}, device).requires_grad_(),
      torch::ones({3}, device).requires_grad_(),
      torch::zeros({2, 0}, device).requires_grad_()};
  const auto optimizer = adamw(parameters);
  optimizer->partition_state(devices_of("2xsim"));
  for (const Tensor& parameter : parameters) {
    parameter.mutable_grad() = torch::ones_like(parameter.detach());
  }
  optimizer->step();
  EXPECT_LT(parameters[1].cpu().max().item<double>(), 1);
  const State state = optimizer->state_dict();
  EXPECT_EQ(state.at("exp_avg.2").sizes(), parameters[2].sizes());
  optimizer->load_state_dict(state);
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
  const Training host("2xcpu", &adamw);
  EXPECT_THROW(host.optimizer->partition_state(host.devices), InvalidArgument);
  const Training training("2xsim", &adamw);
  EXPECT_THROW(training.optimizer->partition_state(host.devices),
               InvalidArgument);
  EXPECT_THROW(training.optimizer->partition_state({}), InvalidArgument);
}

}  // namespace partitioned_state
}  // namespace lockstep::sim
