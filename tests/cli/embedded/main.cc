// A user's program for the tests. It has the command line of `lockstep train`,
// or trains in its own loop. Environment variables control it:
//
//   LOCALE    an argument for setlocale()
//   STRATEGY  strategy of the defaults, which then differ from the usual ones
//   FAILURE   an error to make: no-loss, foreign-leaf, unused-parameters,
//             other-parameters
#include <clocale>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/launch/failure/error_file.h"
#include "lockstep/lockstep.h"

namespace {

using lockstep::env;
using torch::Tensor;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    used = register_module("used", torch::nn::Linear(2, 2));
    other = register_module("other", torch::nn::Linear(2, 2));
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = used(x);
    return uses_all ? y + other(x) : y;
  }
  torch::nn::Linear used{nullptr}, other{nullptr};
  bool uses_all = true;
};

struct Points {
  size_t size() const { return 64; }
  torch::data::Example<> get(size_t index) const {
    const auto at = static_cast<float>(index) / 64;
    return {torch::tensor({at, 1 - at}), torch::tensor({1 - at, at})};
  }
};

std::string failure() { return env("FAILURE").value_or(""); }

lockstep::LossAndMetrics loss_of(const Tensor& output, const Tensor& target) {
  static const Tensor leaf = torch::ones({}, torch::requires_grad());
  Tensor loss = (output - target).square().mean();
  if (failure() == "no-loss") loss = loss.detach();
  if (failure() == "foreign-leaf") loss = loss * leaf;
  return loss;
}

void train_by_hand() {
  const lockstep::ProcessGroup world = lockstep::init();
  torch::manual_seed(1);
  auto net = std::make_shared<Net>();
  lockstep::DistributedDataParallel<Net> model(net, world);
  const Tensor x = torch::ones({4, 2});
  for (int step = 0; step < 3; ++step) {
    if (step == 1 && failure() == "unused-parameters") net->uses_all = false;
    if (step == 1 && failure() == "other-parameters" && world.rank() == 1) {
      const torch::NoGradGuard no_grad;
      net->used->weight.add_(1);
    }
    model(x).sum().backward();
    net->zero_grad();
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto locale = env("LOCALE")) {
    if (std::setlocale(LC_ALL, locale->c_str()) == nullptr) return 99;
  }
  if (argc > 1 && std::string(argv[1]) == "by-hand") {
    try {
      train_by_hand();
    } catch (const std::exception& error) {
      lockstep::launch::record_error(error);
      fmt::print(stderr, "{}\n", error.what());
      return lockstep::exit_code_of(error);
    }
    return lockstep::kExitDone;
  }
  lockstep::Trainer trainer([] { return std::make_shared<Net>(); });
  trainer.name("embedded")
      .data(std::make_shared<Points>())
      .test_data(std::make_shared<Points>())
      .loss(loss_of)
      .optimizer([](Net& net) {
        return std::make_unique<torch::optim::SGD>(net.parameters(), 0.1);
      });
  lockstep::training::TrainOptions defaults;
  if (const auto strategy = env("STRATEGY")) {
    defaults.strategy(lockstep::training::parse_strategy(*strategy));
    defaults.devices(lockstep::devices("2xcpu"));
    defaults.precision(lockstep::training::Precision::kBFloat16);
    defaults.evaluation().enabled(false);
  }
  return lockstep::train_main(argc, argv, trainer, defaults);
}
