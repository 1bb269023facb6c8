// Tier: nightly, by case. Each case loads torchvision.
#include "lockstep/models/model.h"

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep::model_test {
namespace {

using Named = std::vector<std::pair<std::string, torch::Tensor>>;
using models::ModelSpec;
using models::Stem;

// The models of torchvision. For CIFAR the stem is replaced, as is usual.
constexpr const char* kScript = R"(
import sys
try:
    import torch, torchvision
    from safetensors.torch import save_file
except ImportError as error:
    print('missing:', error)
    sys.exit()
from torch import nn

case, folder = sys.argv[1].split('|')
torch.set_num_threads(1)
torch.manual_seed(11)
if case == 'mlp':
    net = nn.Sequential(*[m for _ in range(6) for m in
                          (nn.Linear(1024, 1024), nn.ReLU())],
                        nn.Linear(1024, 10))
    for layer in net[:-1:2]:
        nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')
elif case == 'cnn':
    class Cnn(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 32, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(32)
            self.conv2 = nn.Conv2d(32, 64, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(64)
            self.conv3 = nn.Conv2d(64, 128, 3, padding=1, bias=False)
            self.bn3 = nn.BatchNorm2d(128)
            self.fc = nn.Linear(128, 10)

        def forward(self, x):
            for conv, bn in ((self.conv1, self.bn1), (self.conv2, self.bn2),
                             (self.conv3, self.bn3)):
                x = nn.functional.max_pool2d(bn(conv(x)).relu(), 2)
            return self.fc(x.mean((2, 3)))

    net = Cnn()
else:
    name, stem = case.split('_')
    net = getattr(torchvision.models, name)(num_classes=10)
    if stem == 'cifar':
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.maxpool = nn.Identity()
        nn.init.kaiming_normal_(net.conv1.weight, mode='fan_out',
                                nonlinearity='relu')

for kind, items in (('parameter', net.named_parameters()),
                    ('buffer', net.named_buffers())):
    for key, tensor in items:
        print(kind, key, list(tensor.shape))
print('total', sum(p.numel() for p in net.parameters()))

def save(name, tensors):
    save_file({k: v.detach().clone().contiguous() for k, v in tensors},
              f'{folder}/{name}')

save('initial', net.state_dict().items())
with torch.no_grad():
    for key, tensor in net.named_parameters():
        if 'bn' in key or 'downsample.1' in key:
            tensor.uniform_(0.5, 1.5)
side = 32 if case.endswith('cifar') or case == 'cnn' else 64
shape = (4, 1024) if case == 'mlp' else (4, 3, side, side)
x = torch.randn(shape)
for _ in range(3):
    net(torch.randn(shape) + 0.3)
save('trained', net.state_dict().items())
net.eval()
with torch.no_grad():
    evaluated = net(x)
net.train()
trained = net(x)
nn.functional.cross_entropy(trained, torch.tensor([0, 1, 2, 3])).backward()
save('results', [('x', x), ('eval', evaluated), ('train', trained)])
save('gradients', [(k, p.grad) for k, p in net.named_parameters()])
save('statistics', net.named_buffers())
)";

ModelSpec spec_of(const std::string& name) {
  if (name == "mlp" || name == "cnn") return {.name = name};
  const bool is_cifar = name.ends_with("_cifar");
  return {.name = name.substr(0, name.find('_')),
          .stem = is_cifar ? Stem::kCifar : Stem::kImageNet};
}

/// As the script prints it.
std::string listing(const torch::nn::Module& model) {
  std::ostringstream text;
  const auto list = [&](const char* kind, const auto& items) {
    for (const auto& item : items) {
      text << kind << ' ' << item.key() << ' ' << item.value().sizes() << '\n';
    }
  };
  list("parameter", model.named_parameters());
  list("buffer", model.named_buffers());
  text << "total " << models::count_parameters(model) << '\n';
  return text.str();
}

double worst(const torch::Tensor& got, const torch::Tensor& expected) {
  return (got.to(torch::kFloat64) - expected.to(torch::kFloat64))
      .abs()
      .max()
      .item<double>();
}

/// Mean and deviation, within six standard errors.
void expect_same_distribution(const torch::Tensor& got,
                              const torch::Tensor& expected,
                              const std::string& name) {
  const double error = 6 / std::sqrt(static_cast<double>(expected.numel()));
  const double deviation = expected.std().item<double>();
  EXPECT_NEAR(got.mean().item<double>(), 0, error * deviation) << name;
  EXPECT_NEAR(got.std().item<double>() / deviation, 1, error) << name;
}

class Models : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    printed_ = run_python(kScript, GetParam() + ("|" + folder_.path()));
    if (printed_.starts_with("missing")) GTEST_SKIP() << printed_;
  }

  Named read(const std::string& name) const {
    return read_safetensors(folder_.path(name)).tensors;
  }
  torch::Tensor result(const std::string& name) const {
    for (const auto& [key, tensor] : read("results")) {
      if (key == name) return tensor;
    }
    throw std::runtime_error("no result " + name);
  }

  std::string printed_;

 private:
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Torchvision, Models,
                         testing::Values("cnn", "mlp", "resnet18_cifar",
                                         "resnet18_imagenet", "resnet34_cifar",
                                         "resnet34_imagenet"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

TEST_P(Models, HasTheSameNamesShapesOrderAndFirstWeights) {
  torch::manual_seed(11);
  const auto model = models::make(spec_of(GetParam()));
  EXPECT_EQ(listing(*model), printed_);
  const bool is_cifar = std::string(GetParam()).ends_with("cifar");
  const auto parameters = model->named_parameters();
  for (const auto& [name, expected] : read("initial")) {
    const auto* parameter = parameters.find(name);
    if (parameter == nullptr) continue;  // a buffer
    // For CIFAR the stem was drawn twice, so the streams differ.
    if (!is_cifar || expected.eq(expected.flatten()[0]).all().item<bool>()) {
      EXPECT_TRUE(parameter->equal(expected)) << name;
      continue;
    }
    expect_same_distribution(*parameter, expected, name);
  }
}

TEST_P(Models, GivesTheSameLogitsGradientsAndStatistics) {
  const auto model = models::make(spec_of(GetParam()), models::Init::kNone);
  load_state_dict(*model, read("trained"));
  const auto x = result("x");

  model->eval();
  {
    const torch::NoGradGuard no_grad;
    EXPECT_LE(worst(model->forward(x), result("eval")), 1e-5);
  }
  model->train();
  const auto logits = model->forward(x);
  EXPECT_LE(worst(logits, result("train")), 1e-5);
  torch::nn::functional::cross_entropy(logits, torch::arange(4, torch::kInt64))
      .backward();
  const auto parameters = model->named_parameters();
  for (const auto& [name, expected] : read("gradients")) {
    const double scale = expected.abs().max().item<double>();
    EXPECT_LE(worst(parameters[name].grad(), expected), 1e-4 * scale) << name;
  }
  const auto buffers = model->named_buffers();
  EXPECT_EQ(read("statistics").size(), buffers.size());
  for (const auto& [name, expected] : read("statistics")) {
    EXPECT_LE(worst(buffers[name], expected), 1e-5) << name;
  }
}

}  // namespace
}  // namespace lockstep::model_test
