// Uses the library as a program of a user's does: trains a module of its own
// with DataParallel on one device and on two, and with DistributedDataParallel
// in two ranks, and expects the same bits of all.
#include <cstdio>
#include <lockstep/lockstep.h>
#include <mutex>
#include <string>

#include <torch/optim/sgd.h>

namespace {

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(8, 16));
    out = register_module("out", torch::nn::Linear(16, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::tanh(hidden(x)));
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};
TORCH_MODULE(Net);

constexpr int64_t kBatch = 12;
constexpr int64_t kSteps = 5;

// (N, 8) and (N): the batch of a step.
std::pair<torch::Tensor, torch::Tensor> batch_of(int64_t step) {
  const auto x =
      torch::sin(torch::arange(kBatch * 8).view({kBatch, 8}) + step * 0.5);
  return {x, torch::arange(kBatch) % 3};
}

Net make_net() {
  torch::manual_seed(7);
  return Net();
}

std::string with_data_parallel(const std::string& devices) {
  auto net = make_net();
  auto model =
      lockstep::DataParallel(net, lockstep::devices(devices),
                             lockstep::DataParallelOptions().shards(2));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  const auto loss = [](torch::Tensor logits, torch::Tensor labels) {
    return torch::nn::functional::cross_entropy(logits, labels);
  };
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto [x, y] = batch_of(step);
    model->train_step(x, y, loss, sgd);
  }
  return lockstep::parameter_digest(*net);
}

std::string with_ranks() {
  std::mutex mutex;
  std::string digest;
  lockstep::spawn(2, [&](const lockstep::ProcessGroup& world) {
    Net net{nullptr};
    {
      // The generator is the process's, and the ranks are its threads.
      const std::lock_guard lock(mutex);
      net = make_net();
    }
    lockstep::DistributedDataParallel model(net, world);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const int64_t part = kBatch / world.size();
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto [x, y] = batch_of(step);
      const auto own = [&](const torch::Tensor& all) {
        return all.narrow(0, world.rank() * part, part);
      };
      model->zero_grad();
      torch::nn::functional::cross_entropy(model->forward(own(x)), own(y))
          .backward();
      sgd.step();
    }
    if (world.rank() == 0) digest = lockstep::parameter_digest(*net);
  });
  return digest;
}

}  // namespace

int main() try {
  const std::string digest = with_data_parallel("cpu");
  std::printf("one device   %s\n", digest.c_str());
  const std::string two_devices = with_data_parallel("2xcpu");
  std::printf("two devices  %s\n", two_devices.c_str());
  const std::string two_ranks = with_ranks();
  std::printf("two ranks    %s\n", two_ranks.c_str());
  return digest == two_devices && digest == two_ranks ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
