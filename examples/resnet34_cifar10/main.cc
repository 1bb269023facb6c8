// ResNet-34 on CIFAR-10, like TrainerSingle and TrainerDP of the practical. The
// options are those of `lockstep train`:
//     resnet34_cifar10 --strategy dp --devices 2xcpu --max-steps 20
// Without a folder cifar10 with the *.bin files, it says so and makes three
// small steps on generated images.
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "lockstep/lockstep.h"

using lockstep::data::Split;
using lockstep::models::Model;

std::shared_ptr<lockstep::data::ImageSource> images(const std::string& dir,
                                                    Split split) {
  lockstep::data::DataSpec spec;
  if (!dir.empty()) spec = {.name = "cifar10", .dir = dir};
  return std::make_shared<lockstep::data::ImageSource>(
      lockstep::data::open(spec, split),
      lockstep::data::ImageOptions().augment(split == Split::kTrain));
}

int main(int argc, char** argv) {
  const bool has_folder = std::filesystem::exists("cifar10/test_batch.bin");
  if (!has_folder && std::getenv("RANK") == nullptr) {  // not in each rank
    std::cerr << "no cifar10/test_batch.bin: training on generated images\n";
  }
  const std::string dir = has_folder ? "cifar10" : "";
  lockstep::Trainer trainer(
      [] { return lockstep::models::make({.name = "resnet34"}); });
  trainer.name("resnet34")
      .data(images(dir, Split::kTrain))
      .loss([](const torch::Tensor& logits, const torch::Tensor& labels) {
        return lockstep::LossAndMetrics(
            torch::cross_entropy_loss(logits, labels),
            {{"accuracy", lockstep::training::accuracy(logits, labels)}});
      })
      .optimizer([](Model& net) {
        return std::make_unique<torch::optim::SGD>(
            net.parameters(),
            torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(5e-4));
      })
      // 0.1, then 0.01 from epoch 4, 0.001 from epoch 9, 0.0001 from epoch 14.
      .schedule([](const lockstep::training::Position& position) {
        double factor = 1;
        for (const int64_t milestone : {4, 9, 14}) {
          if (position.epoch >= milestone) factor *= 0.1;
        }
        return factor;
      });
  lockstep::training::TrainOptions defaults;
  if (has_folder) {
    trainer.test_data(images(dir, Split::kTest));
    defaults.batch_size(128).epochs(15);
  } else {
    defaults.batch_size(8).max_steps(3);
  }
  return lockstep::train_main(argc, argv, trainer, defaults);
}
