#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace lockstep::models {

/// A classifier of images or vectors: (N, ...) in, logits (N, classes) out.
class Model : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

/// How a ResNet begins, by the size of its images.
enum class Stem {
  kCifar,     ///< 3x3 convolution, stride 1: for 32x32 images
  kImageNet,  ///< 7x7 convolution, stride 2, and a 3x3 max-pool
};

/// Everything needed to build a model anew.
struct ModelSpec {
  std::string name = "resnet18";  ///< one of names()
  int64_t classes = 10;
  Stem stem = Stem::kCifar;    ///< resnets
  int64_t channels = 3;        ///< of the images; all but the mlp
  int64_t in_features = 1024;  ///< mlp: inputs are flattened to this
  int64_t width = 1024;        ///< mlp
  int64_t depth = 6;           ///< mlp: hidden layers
};

/// How the first weights are drawn.
enum class Init {
  kRandom,  ///< as make() says, from the default generator
  kNone,    ///< parameters hold anything: for a replica, which gets others'
};

/// The models that make() knows: cnn, mlp, resnet18, resnet34.
const std::vector<std::string>& names();

/// Builds a model. torch::manual_seed(n) gives the weights that
/// torch.manual_seed(n) gives in Python: resnets have torchvision's parameter
/// names and initialisation, the cnn those of torch.nn, the mlp the names of
/// torch.nn.Sequential and its own initialisation (mlp.h). With Init::kNone no
/// random number is drawn and no memory touched. Throws InvalidArgument for an
/// unknown name (suggesting the nearest) or a size below 1.
std::shared_ptr<Model> make(const ModelSpec& spec, Init init = Init::kRandom);

/// The sum of the elements of all parameters.
int64_t count_parameters(const torch::nn::Module& module);

}  // namespace lockstep::models
