// Training with DataParallel has the bits of slices, on any number of simulated
// devices. The suites of tests/parallel that run here, too, test the rest.
#include "lockstep/parallel/data_parallel.h"

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/device/autocast.h"
#include "lockstep/parallel/functional.h"
#include "tests/accelerator/nets.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace data_parallel_modes {

using torch::Tensor;
using Devices = std::vector<Device>;

constexpr int kSteps = 3;

/// A wrapped net and the batches to train it on.
template <class Net>
struct Setting {
  Setting(const Devices& list, const DataParallelOptions& wrapped)
      : home(list.front()), net(moved(home)), model(net.ptr(), list, wrapped) {
    torch::manual_seed(4);
  }
  static Net moved(const Device& device) {
    torch::manual_seed(3);
    Net made;
    lockstep::to(*made, device);
    return made;
  }
  Batch batch(int64_t samples = 8) const {
    if constexpr (std::is_same_v<Net, TokenNet>) {
      return on(home, texts(samples));
    } else {
      return on(home, images(samples));
    }
  }
  std::vector<Tensor> parameters() const { return net->parameters(); }
  std::string digest() const { return digest_of(*net); }

  Device home;
  Net net;
  DataParallel<typename Net::ContainedType> model;
};

using Images = Setting<ConvNet>;
using Texts = Setting<TokenNet>;

/// Makes steps with train_step(). `make` returns the optimizer.
template <class S, class Make>
std::string steps(const Devices& list, const Make& make,
                  const DataParallelOptions& wrapped = wrap_options(),
                  const TrainStepOptions& each = {}, int64_t samples = 8) {
  S setting(list, wrapped);
  auto optimizer = make(setting.parameters());
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = setting.batch(samples);
    setting.model->train_step(batch.x, batch.y, &class_loss, *optimizer, each);
  }
  return setting.digest();
}

/// Makes steps with forward(), backward() and the optimizer's step().
template <class S, class Make>
std::string own_loop(const Devices& list, const Make& make,
                     const DataParallelOptions& wrapped = wrap_options()) {
  S setting(list, wrapped);
  auto optimizer = make(setting.parameters());
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = setting.batch();
    optimizer->zero_grad();
    class_loss(setting.model->forward(batch.x), batch.y).backward();
    optimizer->step();
  }
  return setting.digest();
}

std::unique_ptr<torch::optim::SGD> torch_sgd(std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      optim::unique(parameters), torch::optim::SGDOptions(0.05).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> own_sgd(
    std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(
      optim::unique(parameters),
      torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true));
}
std::unique_ptr<torch::optim::Optimizer> own_adamw(
    std::vector<Tensor> parameters) {
  return std::make_unique<torch::optim::AdamW>(optim::unique(parameters), 0.01);
}

/// replicate(), scatter(), parallel_apply() and gather(), without gradients.
std::string functions(const Devices& list) {
  const torch::NoGradGuard no_grad;
  ConvNet net = Images::moved(list.front());
  net->eval();
  torch::manual_seed(4);
  std::vector<ReplicaForward> forwards;
  std::vector<std::unique_ptr<Worker>> workers;
  for (const auto& replica : replicate(net.ptr(), list)) {
    forwards.emplace_back([replica](const std::vector<c10::IValue>& inputs) {
      return replica->forward(inputs[0].toTensor());
    });
  }
  for (const Device& device : list) {
    workers.push_back(std::make_unique<Worker>(device, 1));
  }
  Checksum sum;
  for (int step = 0; step < kSteps; ++step) {
    // A sample for each replica: a kernel for more has other bits.
    for (const Tensor& x : images(12).x.split(ssize(list))) {
      std::vector<std::vector<c10::IValue>> inputs;
      for (c10::IValue& part :
           scatter(x.to(torch_device(list.front())), list)) {
        inputs.push_back({std::move(part)});
      }
      const auto outputs = parallel_apply(forwards, inputs, workers);
      add_elements(sum, gather(outputs, list.front()).toTensor());
    }
  }
  return sum.hex();
}

/// Gradients of two batches are added up before an update.
std::string accumulation(const Devices& list) {
  Images setting(list, wrap_options());
  auto sgd = own_sgd(setting.parameters());
  for (int step = 0; step < kSteps; ++step) {
    const Batch first = setting.batch(), second = setting.batch();
    setting.model->train_step(first.x, first.y, &class_loss);
    setting.model->train_step(second.x, second.y, &class_loss, *sgd);
  }
  return setting.digest();
}

/// The gradient of the inputs.
std::string input_gradients(const Devices& list) {
  Images setting(list, wrap_options());
  Checksum sum;
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = setting.batch();
    const Tensor x = batch.x.requires_grad_();
    class_loss(setting.model->forward(x), batch.y).backward();
    add_elements(sum, x.grad());
    const Tensor z = x.detach().clone().requires_grad_();
    setting.model->train_step(z, batch.y, &class_loss);
    add_elements(sum, z.grad());
  }
  for (const Tensor& p : setting.parameters()) add_elements(sum, p.grad());
  return sum.hex();
}

/// Mixed precision. The loss is scaled, as float16 needs it.
std::string mixed(const Devices& list, c10::ScalarType type, double scale) {
  Texts setting(list, wrap_options());
  auto adamw = own_adamw(setting.parameters());
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = setting.batch();
    const AutocastScope autocast(list.front().type, type);
    setting.model->train_step(batch.x, batch.y, &class_loss, *adamw,
                              TrainStepOptions().loss_scale(scale));
  }
  return setting.digest();
}

std::string mixed_own_loop(const Devices& list) {
  Images setting(list, wrap_options());
  auto sgd = torch_sgd(setting.parameters());
  for (int step = 0; step < kSteps; ++step) {
    sgd->zero_grad();
    const Batch batch = setting.batch();
    Tensor loss;
    {
      const AutocastScope autocast(list.front().type, torch::kBFloat16);
      loss = class_loss(setting.model->forward(batch.x), batch.y);
    }
    loss.backward();
    sgd->step();
  }
  return setting.digest();
}

/// The weights themselves are of a smaller type.
std::string small_weights(const Devices& list) {
  torch::manual_seed(3);
  TokenNet net;
  net->to(torch::kBFloat16);
  lockstep::to(*net, list.front());
  const DataParallel model(net.ptr(), list, wrap_options());
  auto sgd = own_sgd(net->parameters());
  torch::manual_seed(4);
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = on(list.front(), texts(8));
    model->train_step(batch.x, batch.y, &class_loss, *sgd);
  }
  return digest_of(*net);
}

/// Batches arrive in memory of the host.
std::string host_batches(const Devices& list) {
  Images setting(list, wrap_options());
  auto sgd = torch_sgd(setting.parameters());
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = images(8);
    setting.model->train_step(batch.x, batch.y, &class_loss, *sgd);
    sgd->zero_grad();
    const Tensor output = setting.model->forward(batch.x);
    class_loss(output, batch.y.to(output.device())).backward();
    sgd->step();
  }
  return setting.digest();
}

/// The caller works in another stream than the default one on each device.
std::string in_own_streams(const Devices& list, bool in_loop) {
  std::vector<c10::Stream> streams;
  for (const Device& device : list) {
    if (device.is_cpu()) break;
    streams.push_back(c10::impl::VirtualGuardImpl(device.type)
                          .getStreamFromGlobalPool(torch_device(device)));
  }
  const c10::MultiStreamGuard guard(streams);
  return in_loop ? own_loop<Images>(list, torch_sgd)
                 : steps<Images>(list, torch_sgd);
}

struct Mode {
  const char* name;
  std::function<std::string(const Devices&)> digest;
};

const std::vector<Mode>& modes() {
  static const std::vector<Mode> all{
      {"StepOwnSgd", [](auto& list) { return steps<Images>(list, own_sgd); }},
      {"StepOwnAdamW",
       [](auto& list) { return steps<Texts>(list, own_adamw); }},
      {"LoopTorchSgd",
       [](auto& list) { return own_loop<Images>(list, torch_sgd); }},
      {"LoopOwnAdamW",
       [](auto& list) { return own_loop<Texts>(list, own_adamw); }},
      {"ClassicStep",
       [](auto& list) {
         return steps<Images>(
             list, own_sgd,
             wrap_options().replication(Replication::kEveryForward));
       }},
      {"Functions", &functions},
      {"FewSamples",
       [](auto& list) {
         return steps<Texts>(list, own_sgd, wrap_options(), {}, 3);
       }},
      {"VerifiedGradients",
       [](auto& list) {
         return steps<Images>(list, own_sgd, wrap_options(),
                              TrainStepOptions().verify_gradients(true));
       }},
      {"NoFirstCheck",
       [](auto& list) {
         return steps<Images>(list, own_sgd,
                              wrap_options().verify(Verify::kNever));
       }},
      {"Accumulation", &accumulation},
      {"InputGradients", &input_gradients},
      {"BFloat16", [](auto& list) { return mixed(list, torch::kBFloat16, 1); }},
      {"Float16Scaled",
       [](auto& list) { return mixed(list, torch::kHalf, 1024); }},
      {"BFloat16InLoop", &mixed_own_loop},
      {"BFloat16Weights", &small_weights},
      {"HostBatches", &host_batches},
      {"StepInOwnStreams",
       [](auto& list) { return in_own_streams(list, false); }},
      {"LoopInOwnStreams",
       [](auto& list) { return in_own_streams(list, true); }}};
  return all;
}

class DataParallelDigests : public testing::TestWithParam<Mode> {};

TEST_P(DataParallelDigests, HaveTheBitsOfSlices) {
  const auto& mode = GetParam();
  const std::string expected = mode.digest(devices_of("4xcpu"));
  std::string row = expected.substr(0, 12);
  for (const int count : {1, 2, 3, 4}) {
    const auto list = count == 1 ? devices_of("sim:0")
                                 : devices_of(std::to_string(count) + "xsim");
    const std::string digest = mode.digest(list);
    EXPECT_EQ(digest, expected) << count << " devices";
    row += " " + digest.substr(0, 12);
  }
  std::printf("[ DIGEST   ] %-20s %s\n", mode.name, row.c_str());
}

/// The norm of a float16 gradient may be larger than any float16.
TEST(DataParallelClipping, MeasuresLargeNormsOfSmallTypes) {
  const auto norm = [](const std::string& list) {
    const auto devices = devices_of(list);
    torch::manual_seed(3);
    torch::nn::Linear net(64, 64);
    net->to(torch::kHalf);
    lockstep::to(*net, devices.front());
    const DataParallel model(net, devices, wrap_options());
    auto sgd = own_sgd(net->parameters());
    const auto home = torch_device(devices.front());
    const Tensor x = torch::full({8, 64}, 40, torch::kHalf).to(home);
    const auto result = model->train_step(
        x, x,
        [](const Tensor& output, const Tensor&) {
          return output.to(torch::kFloat).mean() * 4096;
        },
        *sgd, TrainStepOptions().clip_grad_norm(1));
    EXPECT_TRUE(result.is_finite) << list;
    return result.gradient_norm;
  };
  const double expected = norm("4xcpu");
  EXPECT_GT(expected, 65504);
  EXPECT_NEAR(norm("2xsim"), expected, 1e-4 * expected);
}

/// Replicas on one device draw from the same generator of random numbers.
TEST(DataParallelDuplicates, HaveTheBitsOfSlices) {
  const auto trained = [](const std::string& list) {
    Images setting(devices(list, Duplicates::kAllow, Oversubscription::kAllow),
                   wrap_options());
    auto sgd = own_sgd(setting.parameters());
    for (int step = 0; step < 2 * kSteps; ++step) {
      const Batch batch = setting.batch();
      setting.model->train_step(batch.x, batch.y, &class_loss, *sgd);
    }
    return setting.digest();
  };
  const std::string expected = trained("4xcpu");
  EXPECT_EQ(trained("sim:0,sim:0"), expected);
  EXPECT_EQ(trained("sim:0,sim:1,sim:0,sim:1"), expected);
}

INSTANTIATE_TEST_SUITE_P(, DataParallelDigests, testing::ValuesIn(modes()),
                         [](const auto& info) {
                           return std::string(info.param.name);
                         });

}  // namespace data_parallel_modes
}  // namespace lockstep::sim
