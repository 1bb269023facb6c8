#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace lockstep::models {

/// A model with one input. A classifier of images or vectors takes (N, ...) and
/// returns logits (N, classes).
class Model : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

/// First layers of a ResNet, by the size of its images.
enum class Stem {
  kCifar,     ///< 3x3 convolution, stride 1: for 32x32 images
  kImageNet,  ///< 7x7 convolution, stride 2, and a 3x3 max-pool
};

/// A specification from which a model can be built again.
struct ModelSpec {
  std::string name = "resnet18";  ///< one of names()
  int64_t classes = 10;
  Stem stem = Stem::kCifar;    ///< resnets
  int64_t channels = 3;        ///< channels of the images; all but the mlp
  int64_t in_features = 1024;  ///< mlp: inputs are flattened to this
  int64_t width = 1024;        ///< mlp
  int64_t depth = 6;           ///< mlp: hidden layers
};

/// Initialisation of the weights.
enum class Init {
  kRandom,  ///< as described at make(), from the default generator
  kNone,    ///< none: a replica's parameters are copied
};

/// Returns the models that make() knows: cnn, mlp, resnet18, resnet34.
const std::vector<std::string>& names();

/// Builds a model. torch::manual_seed(n) gives the same weights as
/// torch.manual_seed(n) in Python. Resnets have the parameter names and the
/// initialisation of torchvision, the cnn those of torch.nn, the mlp the names
/// of torch.nn.Sequential and its own initialisation. With
/// Init::kNone, no random number is drawn and no memory is touched. Throws
/// InvalidArgument for an unknown name (suggesting the nearest) or a size
/// below 1.
std::shared_ptr<Model> make(const ModelSpec& spec, Init init = Init::kRandom);

/// Returns the number of elements in all parameters.
int64_t count_parameters(const torch::nn::Module& module);

}  // namespace lockstep::models
