// DistributedDataParallel around your own module, with torch's optimizer, whose
// step optim::fuse() makes faster.
// Without a launcher it is one rank. A launcher sets the number of ranks:
//
//     lockstep run --nproc-per-node 2 -- ./distributed
//     torchrun --nproc-per-node 2 --no-python ./distributed
#include <cstdio>

#include "../arguments.h"
#include "lockstep/lockstep.h"

using torch::Tensor;

struct Net : torch::nn::Module {
  Net() {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 16, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(16));
    fc = register_module("fc", torch::nn::Linear(16, 10));
  }
  Tensor forward(const Tensor& images) {
    return fc(torch::relu(norm(conv(images))).mean({2, 3}));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

int main(int argc, char** argv) try {
  Arguments(argc, argv, "");  // no arguments
  const auto world = lockstep::init();
  torch::manual_seed(0);
  auto net = std::make_shared<Net>();
  // The last batch of an epoch may be split unevenly.
  lockstep::DistributedDataParallel model(
      net, world,
      lockstep::DistributedDataParallelOptions().average(
          lockstep::GradientAverage::kSamples));
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(0.05).momentum(0.9));
  auto fused = lockstep::optim::fuse(sgd, model);

  // Each rank loads its part of every batch, so every sample is loaded once.
  auto images = lockstep::data::open({}, lockstep::data::Split::kTrain);
  lockstep::data::Loader loader(
      images,
      lockstep::data::LoaderOptions()
          .batch_size(100)
          .part(lockstep::data::BatchPart::for_rank(world.size(), world.rank()))
          .shuffle(true));
  for (int epoch = 0; epoch < 2; ++epoch) {
    loader.set_epoch(epoch);
    // The sum of the losses, and the number of samples.
    Tensor sums = torch::zeros({2}, torch::kDouble);
    for (const auto& batch : loader) {
      const Tensor loss = torch::nn::functional::cross_entropy(
          model->forward(batch.data), batch.target);
      fused.zero_grad();
      loss.backward();
      fused.step();
      const auto samples = static_cast<double>(batch.samples);
      sums += torch::tensor({loss.item<double>() * samples, samples},
                            torch::kDouble);
    }
    world.all_reduce(sums);
    if (world.rank() == 0) {
      std::printf("epoch %d: loss %.4f over %.0f samples, %d ranks\n", epoch,
                  sums[0].item<double>() / sums[1].item<double>(),
                  sums[1].item<double>(), world.size());
    }
  }
} catch (const std::exception& error) {
  return end_with(error);
}
