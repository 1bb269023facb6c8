// What the others do wrong, done right: this one compiles.
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/reduction/owned_gradient.h"

void fail() {
  throw lockstep::DataError(
      {.code = lockstep::ErrorCode::kFileTooLarge, .what = "too large"});
}

void own(torch::Tensor memory) {
  auto gradient = lockstep::OwnedGradient::in(std::move(memory));
  const lockstep::OwnedGradient moved = std::move(gradient);
}

void train(const torch::Tensor& x, const lockstep::ProcessGroup& world) {
  const torch::nn::Linear net(2, 2);
  const auto loss = [](const torch::Tensor& output,
                       const torch::Tensor& target) {
    return torch::mse_loss(output, target);
  };
  const lockstep::DataParallel model(net, lockstep::devices("2xcpu"));
  const auto make = [] {
    return std::make_shared<torch::nn::LinearImpl>(2, 2);
  };
  const lockstep::DataParallel made(make(), make, lockstep::devices("2xcpu"));
  const lockstep::DataParallel held(net, make, lockstep::devices("2xcpu"),
                                    lockstep::DataParallelOptions());
  const lockstep::DataParallel listed(net, {lockstep::Device{}},
                                      lockstep::DataParallelOptions());
  const lockstep::DataParallel copy = made;
  const lockstep::DataParallel chained(
      torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::ReLU()),
      lockstep::devices("2xcpu"));
  torch::optim::SGD sgd(model->parameters(), 0.1);
  model->train_step(x, x, loss, sgd,
                    lockstep::TrainStepOptions().clip_grad_norm(1));
  const lockstep::DistributedDataParallel ranked(net, world);
  const lockstep::DistributedDataParallel same = ranked;
  const lockstep::DistributedDataParallel other(
      make(), make, world, lockstep::DistributedDataParallelOptions());
  torch::optim::Adam adam(model->parameters());
  lockstep::optim::fuse(adam, model).step();
  auto fused = lockstep::optim::fuse(adam, ranked);
  fused.zero_grad();
  const auto no_sync = ranked->no_sync();
  ranked->forward(x).sum().backward();
}
