#include <iostream>

#include "lockstep/lockstep.h"

int main() {
  auto devices = lockstep::devices("auto");
  auto net = lockstep::models::make({.name = "resnet18"});
  lockstep::to(*net, devices.front());
  auto model = lockstep::DataParallel(net, devices);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.02));
  auto loss = [](torch::Tensor logits, torch::Tensor labels) {
    return torch::nn::functional::cross_entropy(logits, labels);
  };

  auto images =
      lockstep::data::open({.samples = 640}, lockstep::data::Split::kTrain);
  lockstep::data::Loader loader(
      images, lockstep::data::LoaderOptions().batch_size(64).shuffle(true));
  for (auto& batch : loader) {
    auto step = model->train_step(batch.data, batch.target, loss, sgd);
    std::cout << "loss " << step.loss << std::endl;
  }
  lockstep::save(*net, "resnet18.safetensors");
}
