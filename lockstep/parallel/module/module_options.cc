#include "lockstep/parallel/module/module_options.h"

#include <typeindex>
#include <typeinfo>
#include <unordered_map>

#include <torch/nn/modules.h>

namespace lockstep {
namespace {

using namespace torch::nn;  // NOLINT: some sixty of its classes are listed
using CopyOptions = void (*)(const Module&, Module&);
using CopyByType = std::unordered_map<std::type_index, CopyOptions>;

template <class M>
void copy_options(const Module& from, Module& to) {
  const auto& source = static_cast<const M&>(from);
  auto& target = static_cast<M&>(to);
  if constexpr (requires { target.options; }) target.options = source.options;
  if constexpr (requires { target.options_base; }) {
    target.options_base = source.options_base;
  }
}

template <class... M>
CopyByType table_of() {
  return {{std::type_index(typeid(M)), &copy_options<M>}...};
}

/// Modules that read their options in forward().
const CopyByType& known_modules() {
  static const CopyByType table = table_of<
      // Layers with parameters.
      LinearImpl, BilinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl,
      ConvTranspose1dImpl, ConvTranspose2dImpl, ConvTranspose3dImpl,
      EmbeddingImpl, EmbeddingBagImpl, MultiheadAttentionImpl, RNNImpl,
      LSTMImpl, GRUImpl, RNNCellImpl, LSTMCellImpl, GRUCellImpl,
      TransformerEncoderLayerImpl, TransformerDecoderLayerImpl,
      // Normalisation.
      BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
      InstanceNorm2dImpl, InstanceNorm3dImpl, LayerNormImpl, GroupNormImpl,
      LocalResponseNormImpl, CrossMapLRN2dImpl,
      // Layers that draw random numbers.
      DropoutImpl, Dropout2dImpl, Dropout3dImpl, AlphaDropoutImpl,
      FeatureAlphaDropoutImpl, RReLUImpl, FractionalMaxPool2dImpl,
      FractionalMaxPool3dImpl,
      // Activations.
      ELUImpl, SELUImpl, HardshrinkImpl, HardtanhImpl, LeakyReLUImpl,
      SoftmaxImpl, SoftminImpl, LogSoftmaxImpl, PReLUImpl, ReLUImpl, ReLU6Impl,
      CELUImpl, GLUImpl, GELUImpl, SoftplusImpl, SoftshrinkImpl, ThresholdImpl,
      // Pooling, padding and shapes.
      AvgPool1dImpl, AvgPool2dImpl, AvgPool3dImpl, MaxPool1dImpl, MaxPool2dImpl,
      MaxPool3dImpl, AdaptiveAvgPool1dImpl, AdaptiveAvgPool2dImpl,
      AdaptiveAvgPool3dImpl, AdaptiveMaxPool1dImpl, AdaptiveMaxPool2dImpl,
      AdaptiveMaxPool3dImpl, MaxUnpool1dImpl, MaxUnpool2dImpl, MaxUnpool3dImpl,
      LPPool1dImpl, LPPool2dImpl, LPPool3dImpl, ReflectionPad1dImpl,
      ReflectionPad2dImpl, ReflectionPad3dImpl, ReplicationPad1dImpl,
      ReplicationPad2dImpl, ReplicationPad3dImpl, ZeroPad1dImpl, ZeroPad2dImpl,
      ZeroPad3dImpl, ConstantPad1dImpl, ConstantPad2dImpl, ConstantPad3dImpl,
      UpsampleImpl, PixelShuffleImpl, PixelUnshuffleImpl, FlattenImpl,
      UnflattenImpl, FoldImpl, UnfoldImpl,
      // Losses and distances, which may be part of a model.
      CosineSimilarityImpl, PairwiseDistanceImpl, L1LossImpl, MSELossImpl,
      SmoothL1LossImpl, HuberLossImpl, BCELossImpl, BCEWithLogitsLossImpl,
      CrossEntropyLossImpl, NLLLossImpl, KLDivLossImpl>();
  return table;
}

}  // namespace

std::vector<std::function<void()>> follow_options(const Module& original,
                                                  Module& copy) {
  const auto sources = original.modules();
  const auto targets = copy.modules();
  std::vector<std::function<void()>> followers;
  for (size_t i = 0; i < sources.size() && i < targets.size(); ++i) {
    const Module& from = *sources[i];
    Module& to = *targets[i];
    const auto known = known_modules().find(typeid(from));
    if (known == known_modules().end() || typeid(to) != typeid(from)) continue;
    followers.emplace_back(
        [copy_of = known->second, source = sources[i], target = targets[i]] {
          copy_of(*source, *target);
        });
  }
  return followers;
}

}  // namespace lockstep
