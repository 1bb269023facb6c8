// Programs that change something after the first step that no wrapper can see.
// The checks of the steps 2, 4, 8, ... find it.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/first_step_cases.h"

namespace lockstep::first_step_test {
namespace {

/// A layer of the user's own, with a temperature.
struct SofteningImpl : torch::nn::Cloneable<SofteningImpl> {
  void reset() override {}
  Tensor forward(const Tensor& x) const { return x / temperature; }
  double temperature = 1;
};
TORCH_MODULE(Softening);

/// Has what MemberWatch can't see: members of a submodule, and elements of a
/// vector.
struct ChangingImpl : torch::nn::Cloneable<ChangingImpl> {
  ChangingImpl() { reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(6, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    drop = register_module("drop", torch::nn::Dropout(0.2));
    soft = register_module("soft", soft ? Softening(*soft) : Softening());
  }
  Tensor forward(const Tensor& x) {
    return soft(drop(norm(fc(x)))) * factors[0];
  }
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
  Softening soft{nullptr};
  std::vector<double> factors{1, 2};
};
TORCH_MODULE(Changing);

struct Change {
  const char* name;
  std::function<void(ChangingImpl&)> make;
  bool is_followed;  // the next step has it
};
const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      {"member of a submodule",
       [](ChangingImpl& net) { net.soft->temperature = 3; }, false},
      {"element of a vector", [](ChangingImpl& net) { net.factors[0] = 3; },
       false},
      {"frozen layer",
       [](ChangingImpl& net) { net.fc->weight.requires_grad_(false); }, true},
      {"replaced layer",
       [](ChangingImpl& net) {
         net.fc = net.replace_module("fc", torch::nn::Linear(6, 4));
       },
       true},
      {"option of a layer", [](ChangingImpl& net) { net.drop->options.p(0.5); },
       true},
  };
  return all;
}

/// Makes steps until one throws or there were `most`. `change` is called after
/// `at` steps. Returns the number of the step that threw, or 0, and its text.
int64_t failing_step(const std::function<void()>& step,
                     const std::function<void()>& change, int64_t at,
                     int64_t most, ErrorCode code, std::string& text) {
  for (int64_t number = 1; number <= most; ++number) {
    if (number == at + 1) change();
    try {
      step();
    } catch (const ParallelError& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      text = error.what();
      return number;
    }
  }
  return 0;
}

int64_t next_power_of_two(int64_t number) {
  int64_t power = 1;
  while (power < number) power *= 2;
  return power;
}

TEST(StepCheck, FindsWhatChangesAfterSomeSteps) {
  for (const Change& change : changes()) {
    for (const int64_t at : {3, 50, 700}) {
      // The step after the change has it, however late that is.
      if (change.is_followed && at > 3) continue;
      SCOPED_TRACE(testing::Message() << change.name << " after " << at);
      Changing net;
      const DataParallel model(net, slices(2));
      const Tensor x = images(), y = classes();
      std::string text;
      const int64_t expected =
          change.is_followed ? 0 : next_power_of_two(at + 1);
      EXPECT_EQ(failing_step([&] { model->train_step(x, y, cross_entropy); },
                             [&] { change.make(*net); }, at,
                             change.is_followed ? 16 : 1024,
                             ErrorCode::kReplicaDiffers, text),
                expected);
      if (change.is_followed) continue;
      EXPECT_PRED2(contains, text, "output differs. Nothing was updated");
      EXPECT_PRED2(contains, text,
                   "the same " + std::to_string(expected / 2) + " step");
      EXPECT_PRED2(contains, text, "call rebuild()");
    }
  }
}

/// Freezes its weight if an element of a vector says so.
struct CuttingImpl : ChangingImpl {
  Tensor forward(const Tensor& x) {
    const bool is_frozen = factors[1] > 2;
    return torch::nn::functional::linear(
        x, is_frozen ? fc->weight.detach() : fc->weight, fc->bias);
  }
};

TEST(StepCheck, FindsWhatOnlyGradientsShowAfterEveryOtherCheck) {
  const auto net = std::make_shared<CuttingImpl>();
  const DataParallel<CuttingImpl> model(
      net, [] { return std::make_shared<CuttingImpl>(); }, slices(2));
  std::string text;
  EXPECT_EQ(failing_step(
                [&] { model->train_step(images(), classes(), cross_entropy); },
                [&] { net->factors[1] = 3; }, 5, 64, ErrorCode::kReplicaDiffers,
                text),
            16);
  EXPECT_PRED2(contains, text, "the gradient of parameter 'fc.weight' differs");
}

TEST(StepCheck, FindsWhatChangesInALoopOfTheUsersOwn) {
  for (const int64_t at : {3, 50}) {
    Changing net;
    const DataParallel model(net, slices(2));
    torch::optim::SGD sgd(net->parameters(), 1e-3);
    const Tensor x = images(), y = classes();
    std::string text;
    EXPECT_EQ(failing_step(
                  [&] {
                    sgd.zero_grad();
                    cross_entropy(model->forward(x), y).backward();
                    sgd.step();
                  },
                  [&] { net->factors[0] = 3; }, at, 128,
                  ErrorCode::kReplicaDiffers, text),
              next_power_of_two(at + 1));
    EXPECT_PRED2(contains, text, "call rebuild()");
  }
}

TEST(StepCheck, GoesOnAfterARebuild) {
  Changing net;
  const DataParallel model(net, slices(2));
  const Tensor x = images(), y = classes();
  const auto step = [&] { model->train_step(x, y, cross_entropy); };
  for (int i = 0; i < 3; ++i) step();
  net->soft->temperature = 3;
  for (int attempt = 0; attempt < 2; ++attempt) {
    text_of_error(step, ErrorCode::kReplicaDiffers);
  }
  model->rebuild();
  for (int i = 0; i < 9; ++i) EXPECT_NO_THROW(step());
}

TEST(StepCheck, FindsALossThatChangesItsWeighting) {
  for (const int64_t at : {3, 50, 700}) {
    Changing net;
    const DataParallel model(net, slices(2));
    const Tensor x = images(), y = uneven_targets();
    bool has_weights = false;
    const auto loss = [&](const Tensor& output, const Tensor& target) {
      return has_weights ? ignoring(output, target)
                         : cross_entropy(output, target);
    };
    std::string text;
    EXPECT_EQ(failing_step([&] { model->train_step(x, y, loss); },
                           [&] { has_weights = true; }, at, 1024,
                           ErrorCode::kBadLoss, text),
              next_power_of_two(at + 1));
    EXPECT_PRED2(contains, text, "so the loss function has changed");
  }
}

TEST(StepCheck, CountsTheStepsOfEachLoss) {
  Changing net;
  const DataParallel model(net, slices(2));
  const Tensor x = images(), y = uneven_targets();
  bool has_weights = false;
  // As the two losses of a GAN take turns.
  const auto first = [&](const Tensor& output, const Tensor& target) {
    return has_weights ? ignoring(output, target)
                       : cross_entropy(output, target);
  };
  std::string text;
  EXPECT_EQ(failing_step(
                [&] {
                  model->train_step(x, y, first);
                  model->train_step(x, y, cross_entropy);
                },
                [&] { has_weights = true; }, 2, 16, ErrorCode::kBadLoss, text),
            4);
}

TEST(StepCheck, IsMadeWhenItIsAskedFor) {
  for (const Verify verify :
       {Verify::kNever, Verify::kFirst, Verify::kDoubling}) {
    Changing net;
    const DataParallel model(net, slices(2),
                             DataParallelOptions().verify(verify));
    const auto step = [&] {
      model->train_step(images(), classes(), cross_entropy);
    };
    for (int i = 0; i < 4; ++i) step();
    net->factors[0] = 3;
    EXPECT_NO_THROW(step());
    model->verify_next_step();
    if (verify == Verify::kDoubling) {
      text_of_error(step, ErrorCode::kReplicaDiffers);
    } else {
      EXPECT_NO_THROW(step());
    }
  }
}

TEST(StepCheck, ChangesNoBitAndDrawsNoNumber) {
  const auto trained = [](Verify verify, bool loop) {
    torch::manual_seed(3);
    Changing net;
    const DataParallel model(net, slices(2),
                             DataParallelOptions().shards(4).verify(verify));
    torch::optim::SGD sgd(net->parameters(),
                          torch::optim::SGDOptions(0.05).momentum(0.9));
    const Tensor x = images(), y = classes();
    for (int step = 0; step < 20; ++step) {
      if (loop) {
        sgd.zero_grad();
        cross_entropy(model->forward(x), y).backward();
        sgd.step();
      } else {
        model->train_step(x, y, cross_entropy, sgd);
      }
    }
    return bytes_of(*net) + std::to_string(torch::rand({1}).item<float>());
  };
  for (const bool loop : {false, true}) {
    EXPECT_TRUE(trained(Verify::kDoubling, loop) ==
                trained(Verify::kNever, loop));
  }
}

TEST(StepCheck, UsesWholeShardsIfAFewSamplesAreNotEnough) {
  Changing net;
  const DataParallel model(net, slices(2));
  const Tensor x = images(), y = classes();
  const auto loss = [](const Tensor& output, const Tensor& target) {
    // As a loss that looks for pairs in its batch.
    if (output.size(0) == 2) throw std::runtime_error("too few samples");
    return cross_entropy(output, target);
  };
  std::string text;
  EXPECT_EQ(failing_step([&] { model->train_step(x, y, loss); },
                         [&] { net->factors[0] = 3; }, 5, 16,
                         ErrorCode::kReplicaDiffers, text),
            8);
}

class StepCheckOfRanks : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Backends, StepCheckOfRanks,
                         testing::Values("shm", "tcp"));

TEST_P(StepCheckOfRanks, StopsAllRanksIfOneHasChanged) {
  const Tensor x = images(), y = classes();
  std::vector<std::string> texts(2);
  spawn(
      2,
      [&](const ProcessGroup& world) {
        const int rank = world.rank();
        Changing net;
        const DistributedDataParallel model(net, world);
        torch::optim::SGD sgd(net->parameters(), 1e-3);
        EXPECT_EQ(failing_step(
                      [&] {
                        model->train_step(x.narrow(0, rank * 6, 6),
                                          y.narrow(0, rank * 6, 6),
                                          cross_entropy, sgd);
                      },
                      [&] {
                        if (rank == 1) net->soft->temperature = 3;
                      },
                      50, 128, ErrorCode::kReplicaDiffers,
                      texts[static_cast<size_t>(rank)]),
                  64);
      },
      ProcessGroupOptions().backend(GetParam()));
  EXPECT_PRED2(contains, texts[0], "output differs");
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace lockstep::first_step_test
