// A training curve against PyTorch's: same weights, same batches.
#include <filesystem>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/loader.h"
#include "lockstep/models/model.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

constexpr int kSteps = 20;
constexpr int64_t kBatch = 16;
// Gentle: a rate at which the loss jumps would double every rounding error.
constexpr double kRate = 0.001;
constexpr double kMomentum = 0.9;
constexpr double kDecay = 5e-4;

// A shard's BatchNorm sees the shard alone, as under nn.DataParallel, which
// has no CPU: so the chunks are run by hand, and the loss is that of the batch.
constexpr const char* kScript = R"(
import sys
try:
    import torch, torchvision
    from safetensors.torch import load_file
except ImportError as error:
    print('missing:', error)
    sys.exit()
from torch import nn

folder, shards, steps = sys.argv[1].split('|')
torch.set_num_threads(1)
net = torchvision.models.resnet18(num_classes=10)
net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
net.maxpool = nn.Identity()
net.load_state_dict(load_file(f'{folder}/model'))
batches = load_file(f'{folder}/batches')
optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9,
                            weight_decay=5e-4)
for step in range(int(steps)):
    x, y = batches[f'x{step}'], batches[f'y{step}']
    optimizer.zero_grad()
    total = 0.0
    for cx, cy in zip(x.chunk(int(shards)), y.chunk(int(shards))):
        loss = nn.functional.cross_entropy(net(cx), cy) * (len(cy) / len(y))
        loss.backward()
        total += loss.item()
    optimizer.step()
    print(f'{total:.9g}')
)";

class Curve : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Strategies, Curve, testing::Values(1, 2),
                         [](const auto& info) {
                           return info.param == 1 ? std::string("single")
                                                  : std::string("dp");
                         });

std::shared_ptr<const data::Dataset> images() {
  const std::filesystem::path dir =
      std::filesystem::path(LOCKSTEP_SOURCE_DIR) / "../shared/data/cifar10";
  data::DataSpec spec;
  if (std::filesystem::exists(dir)) {
    spec = {.name = "cifar10", .dir = dir.string()};
  } else {
    spec = {.name = "synthetic", .samples = kSteps * kBatch};
  }
  return data::open(spec, data::Split::kTrain);
}

TEST_P(Curve, AgreesWithPyTorchOverTwentySteps) {
  const int k = GetParam();
  TemporaryFolder folder;
  torch::manual_seed(7);
  const models::ModelSpec spec{.name = "resnet18"};
  const auto net = models::make(spec);
  write_safetensors(folder.path("model"), {state_dict(*net), {}});

  data::Loader loader(
      images(),
      data::LoaderOptions().batch_size(kBatch).shuffle(true).workers(0).seed(
          3));
  auto batch = loader.begin();
  SafeTensors batches;
  for (int step = 0; step < kSteps; ++step, ++batch) {
    const std::string number = std::to_string(step);
    batches.tensors.emplace_back("x" + number, batch->data);
    batches.tensors.emplace_back("y" + number, batch->target);
  }
  write_safetensors(folder.path("batches"), batches);

  const std::string printed =
      run_python(kScript, folder.path("") + "|" + std::to_string(k) + "|" +
                              std::to_string(kSteps));
  if (printed.starts_with("missing")) GTEST_SKIP() << printed;

  const DataParallel<models::Model> model(
      net, [&] { return models::make(spec, models::Init::kNone); },
      devices(std::to_string(k) + "xcpu"),
      DataParallelOptions().intra_op_threads(1));
  torch::optim::SGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(kRate).momentum(kMomentum).weight_decay(kDecay));
  std::istringstream lines(printed);
  for (int step = 0; step < kSteps; ++step) {
    double expected = 0;
    ASSERT_TRUE(lines >> expected) << printed;
    const size_t at = static_cast<size_t>(step) * 2;
    const auto result = model->train_step(
        batches.tensors[at].second, batches.tensors[at + 1].second,
        [](const torch::Tensor& output, const torch::Tensor& target) {
          return torch::nn::functional::cross_entropy(output, target);
        },
        optimizer);
    // Same kernels in another order of sums: rounding alone, which training
    // amplifies from step to step.
    EXPECT_NEAR(result.loss, expected, 1e-4 * expected) << "step " << step;
    RecordProperty("loss_" + std::to_string(step), std::to_string(result.loss));
  }
}

}  // namespace
}  // namespace lockstep
