// Practical 6: the network of practical 5, in one process per device.
// Arguments: batch size and steps:
//     lockstep run --nproc-per-node 2 -- practical6_ddp 64 20
//     torchrun --nproc-per-node 2 --no-python practical6_ddp 64 20
#include <iostream>

#include "../arguments.h"
#include "lockstep/lockstep.h"
using namespace lockstep;

struct Net : torch::nn::Cloneable<Net> {
  Net() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(3072, 1024));
    out = register_module("out", torch::nn::Linear(1024, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    return out(hidden(x.flatten(1)).relu());
  }
  torch::nn::Linear hidden{nullptr}, out{nullptr};
};

int main(int argc, char** argv) try {
  Arguments arguments(argc, argv, "BATCH_SIZE STEPS");
  const int64_t batch_size = arguments.number(64);
  const int64_t steps = arguments.number(20);
  const ProcessGroup world = init();
  std::ostringstream line;  // one string, because ranks print at the same time
  line << "Rank: " << world.rank() << " | Local Rank: " << world.local_rank();
  std::cout << line.str() + "\n" << std::flush;
  torch::manual_seed(0);
  auto net = std::make_shared<Net>();
  auto model = DistributedDataParallel(net, world);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  const data::ImageSource images(data::open({}, data::Split::kTrain));
  // A rank reads its own part of each batch.
  const int64_t own_size = batch_size / world.size();
  std::vector<int64_t> samples(own_size);
  const auto start = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t first = step * batch_size + world.rank() * own_size;
    for (int64_t i = 0; i < own_size; ++i)
      samples[i] = (first + i) % images.size();
    const auto batch = images.read(samples, /*epoch=*/0);
    sgd.zero_grad();
    const auto output = model->forward(batch.data);
    torch::cross_entropy_loss(output, batch.target).backward();
    sgd.step();
  }
  if (world.rank() != 0) return 0;
  const std::chrono::duration<double> total =
      std::chrono::steady_clock::now() - start;
  std::cout << "Ranks: " << world.size() << " | Batch of each: " << own_size
            << " | Step time: " << total.count() / steps
            << " s | Total: " << total.count() << " s\nparameter_sha256 "
            << parameter_digest(*net) << std::endl;
} catch (const std::exception& error) {
  return end_with(error);
}
