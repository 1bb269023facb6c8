#include <iostream>

#include "lockstep/lockstep.h"

int main() {
  auto devices = lockstep::devices("auto");
  auto net = lockstep::models::make({.name = "resnet18"});
  net->to(lockstep::torch_device(devices.front()));
  auto model = lockstep::DataParallel(net, devices);
  auto sgd = lockstep::optim::sgd(model->parameters(), 0.02);
  auto loss = [](torch::Tensor logits, torch::Tensor labels) {
    return torch::nn::functional::cross_entropy(logits, labels);
  };

  auto images = lockstep::data::open({}, lockstep::data::Split::kTrain);
  lockstep::data::Loader loader(images, {.batch_size = 64, .shuffle = true});
  loader.begin(/*epoch=*/0);
  for (int step = 0; step < 10; ++step) {
    auto batch = loader.next().value();
    auto done =
        model->train_step(batch.input(), batch.target_tensor(), loss, *sgd);
    std::cout << "step " << step << ": loss " << done.loss << std::endl;
  }
  lockstep::save(*net, "resnet18.safetensors");
}
