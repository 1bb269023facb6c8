#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include "lockstep/device/device.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/data_parallel.h"

/// Small nets that the tests train on slices and on simulated devices.
namespace lockstep::sim {

/// Convolution, batch normalisation and dropout.
struct ConvNetImpl : torch::nn::Cloneable<ConvNetImpl> {
  ConvNetImpl() { ConvNetImpl::reset(); }
  void reset() override {
    conv = register_module(
        "conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(6));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    fc = register_module("fc", torch::nn::Linear(6 * 36, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = norm(conv(x)).relu();
    return fc(dropout(x.flatten(1)));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

/// Embedding, causal attention, an output layer that shares the embedding's
/// weight, and a parameter that nothing uses.
struct TokenNetImpl : torch::nn::Cloneable<TokenNetImpl> {
  static constexpr int64_t kWords = 11, kWidth = 8, kHeads = 2;

  TokenNetImpl() { TokenNetImpl::reset(); }
  void reset() override {
    words = register_module("words", torch::nn::Embedding(kWords, kWidth));
    norm = register_module(
        "norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    in = register_module("in", torch::nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, kWidth));
    unused = register_parameter("unused", torch::ones({3}));
  }
  // (B, T) -> (B, T, words)
  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor x = words(tokens);
    const int64_t batch = x.size(0), length = x.size(1);
    const auto parts = in(norm(x)).chunk(3, -1);
    const auto head = [&](const torch::Tensor& part) {
      return part.view({batch, length, kHeads, kWidth / kHeads})
          .transpose(1, 2);
    };
    const torch::Tensor seen = torch::scaled_dot_product_attention(
        head(parts[0]), head(parts[1]), head(parts[2]), {}, 0,
        /*is_causal=*/true);
    const torch::Tensor y =
        x + out(seen.transpose(1, 2).reshape({batch, length, kWidth}));
    return torch::nn::functional::linear(torch::gelu(y), words->weight);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::Tensor unused;
};
TORCH_MODULE(TokenNet);

/// A net of which one layer has nearly all parameters. The layer's memory is
/// not in the order of its indices.
struct UnevenNetImpl : torch::nn::Cloneable<UnevenNetImpl> {
  explicit UnevenNetImpl(int64_t inputs = 64, int64_t hidden = 4096,
                         int64_t classes = 8)
      : inputs_(inputs), hidden_(hidden), classes_(classes) {
    UnevenNetImpl::reset();
  }
  void reset() override {
    first = register_module("first", torch::nn::Linear(inputs_, hidden_));
    second = register_module("second", torch::nn::Linear(hidden_, classes_));
    first->weight.set_data(first->weight.t().contiguous().t());
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first{nullptr}, second{nullptr};

 private:
  int64_t inputs_, hidden_, classes_;
};
TORCH_MODULE(UnevenNet);

/// Returns the devices that `list` names. Tests may have more slices than
/// cores.
inline std::vector<Device> devices_of(std::string_view list) {
  return devices(list, Duplicates::kRefuse, Oversubscription::kAllow);
}

/// Returns one text for the bits of all parameters and buffers.
inline std::string digest_of(const torch::nn::Module& module) {
  Checksum sum;
  for (const torch::Tensor& tensor : module.parameters()) {
    add_elements(sum, tensor);
  }
  for (const torch::Tensor& tensor : module.buffers()) {
    add_elements(sum, tensor);
  }
  return sum.hex();
}

/// Returns options for four shards, whatever the number of devices.
inline DataParallelOptions wrap_options() {
  return DataParallelOptions().shards(4).intra_op_threads(1).bad_links(
      BadLinks::kIgnore);
}

struct Batch {
  torch::Tensor x, y;
};

/// Returns a batch of images and their classes, in memory of the host.
inline Batch images(int64_t samples = 8) {
  return {torch::randn({samples, 3, 8, 8}), torch::randint(10, {samples})};
}
/// Returns a batch of texts of 5 words and the words that follow, in memory of
/// the host.
inline Batch texts(int64_t samples = 8) {
  const torch::Tensor words =
      torch::randint(TokenNetImpl::kWords, {samples, 6});
  return {words.narrow(1, 0, 5).contiguous(),
          words.narrow(1, 1, 5).contiguous()};
}

inline Batch on(const Device& device, const Batch& batch) {
  const auto home = torch_device(device);
  return {batch.x.to(home), batch.y.to(home)};
}

/// Returns the mean cross entropy, for images and for texts.
inline torch::Tensor class_loss(const torch::Tensor& output,
                                const torch::Tensor& target) {
  return torch::cross_entropy_loss(output.flatten(0, -2).to(torch::kFloat),
                                   target.flatten());
}

}  // namespace lockstep::sim
