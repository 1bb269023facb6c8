#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <torch/torch.h>

// Three models that are written only with torch::nn, as users write theirs.
// peer.py has the same models in Python, with the same sizes.

namespace own_modules {

using torch::Tensor;
namespace nn = torch::nn;

/// A fixed batch of synthetic samples.
struct Batch {
  Tensor inputs, targets;

  /// Returns part `index` of `count` equal parts, in its own memory.
  Batch part(int64_t index, int64_t count) const {
    return {inputs.chunk(count)[index].clone(),
            targets.chunk(count)[index].clone()};
  }
};

/// A classifier of sequences of words: two layers of a transformer's encoder,
/// with dropout.
struct Transformer : nn::Cloneable<Transformer> {
  static constexpr int64_t kSamples = 32, kPlaces = 64, kVocabulary = 1000;
  static constexpr int64_t kWidth = 128, kHeads = 4, kInner = 512, kLayers = 2;
  static constexpr int64_t kClasses = 10;

  Transformer() { Transformer::reset(); }

  void reset() override {
    words = register_module("words", nn::Embedding(kVocabulary, kWidth));
    places =
        register_parameter("places", 0.02 * torch::randn({kPlaces, 1, kWidth}));
    const auto layer = nn::TransformerEncoderLayerOptions(kWidth, kHeads)
                           .dim_feedforward(kInner)
                           .dropout(0.1);
    encoder = register_module(
        "encoder",
        nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, kLayers)));
    head = register_module("head", nn::Linear(kWidth, kClasses));
  }

  Tensor forward(const Tensor& ids) {    // (N, T)
    Tensor x = words(ids.t()) + places;  // (T, N, kWidth)
    return head(encoder(x).mean(0));     // (N, kClasses)
  }

  static Batch batch() {
    return {torch::randint(kVocabulary, {kSamples, kPlaces}, torch::kLong),
            torch::randint(kClasses, {kSamples}, torch::kLong)};
  }

  nn::Embedding words{nullptr};
  Tensor places;
  nn::TransformerEncoder encoder{nullptr};
  nn::Linear head{nullptr};
};

/// Finds the class of each pixel: a small U-Net with three levels.
struct UNet : nn::Cloneable<UNet> {
  static constexpr int64_t kSamples = 16, kSize = 64, kClasses = 4;

  UNet() { UNet::reset(); }

  void reset() override {
    down1 = register_module("down1", twice(3, 16));
    down2 = register_module("down2", twice(16, 32));
    bottom = register_module("bottom", twice(32, 64));
    up2 = register_module("up2", doubled(64, 32));
    join2 = register_module("join2", twice(64, 32));
    up1 = register_module("up1", doubled(32, 16));
    join1 = register_module("join1", twice(32, 16));
    head =
        register_module("head", nn::Conv2d(nn::Conv2dOptions(16, kClasses, 1)));
  }

  Tensor forward(const Tensor& images) {                   // (N, 3, H, W)
    const Tensor first = down1->forward(images);           // (N, 16, H, W)
    const Tensor second = down2->forward(halved(first));   // (N, 32, H/2, W/2)
    const Tensor third = bottom->forward(halved(second));  // (N, 64, H/4, W/4)
    Tensor x = join2->forward(torch::cat({second, up2(third)}, 1));
    x = join1->forward(torch::cat({first, up1(x)}, 1));
    return head(x);  // (N, kClasses, H, W)
  }

  static Batch batch() {
    return {torch::randn({kSamples, 3, kSize, kSize}),
            torch::randint(kClasses, {kSamples, kSize, kSize}, torch::kLong)};
  }

  nn::Sequential down1{nullptr}, down2{nullptr}, bottom{nullptr};
  nn::Sequential join2{nullptr}, join1{nullptr};
  nn::ConvTranspose2d up2{nullptr}, up1{nullptr};
  nn::Conv2d head{nullptr};

 private:
  static nn::Conv2d convolution(int64_t channels_in, int64_t channels_out) {
    return nn::Conv2d(
        nn::Conv2dOptions(channels_in, channels_out, 3).padding(1).bias(false));
  }
  static nn::Sequential twice(int64_t channels_in, int64_t channels_out) {
    return nn::Sequential(convolution(channels_in, channels_out),
                          nn::BatchNorm2d(channels_out), nn::ReLU(),
                          convolution(channels_out, channels_out),
                          nn::BatchNorm2d(channels_out), nn::ReLU());
  }
  static nn::ConvTranspose2d doubled(int64_t channels_in,
                                     int64_t channels_out) {
    return nn::ConvTranspose2d(
        nn::ConvTranspose2dOptions(channels_in, channels_out, 2).stride(2));
  }
  static Tensor halved(const Tensor& x) { return torch::max_pool2d(x, 2); }
};

/// A classifier of texts: an embedding, with sparse gradients if `is_sparse`,
/// and an LSTM.
struct Lstm : nn::Cloneable<Lstm> {
  static constexpr int64_t kSamples = 64, kPlaces = 32, kVocabulary = 20'000;
  static constexpr int64_t kWidth = 128, kHidden = 128, kClasses = 10;

  explicit Lstm(bool is_sparse) : is_sparse(is_sparse) { Lstm::reset(); }

  void reset() override {
    words = register_module(
        "words",
        nn::Embedding(
            nn::EmbeddingOptions(kVocabulary, kWidth).sparse(is_sparse)));
    lstm = register_module(
        "lstm", nn::LSTM(nn::LSTMOptions(kWidth, kHidden).batch_first(true)));
    head = register_module("head", nn::Linear(kHidden, kClasses));
  }

  Tensor forward(const Tensor& ids) {                // (N, T)
    const auto [outputs, state] = lstm(words(ids));  // (N, T, kHidden)
    return head(outputs.select(1, -1));              // (N, kClasses)
  }

  static Batch batch() {
    return {torch::randint(kVocabulary, {kSamples, kPlaces}, torch::kLong),
            torch::randint(kClasses, {kSamples}, torch::kLong)};
  }

  bool is_sparse;
  nn::Embedding words{nullptr};
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
};

}  // namespace own_modules
