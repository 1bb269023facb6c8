#pragma once

#include <cstdint>
#include <vector>

#include <torch/torch.h>

namespace lockstep::models {

/// The keys and values of the tokens that a model has seen, so that the next
/// token costs one position and not all of them.
struct KeyValueCache {
  /// For each layer (B, key/value heads, tokens, head width). Undefined: empty.
  std::vector<torch::Tensor> keys;
  std::vector<torch::Tensor> values;

  int64_t tokens() const {
    return keys.empty() || !keys.front().defined() ? 0 : keys.front().size(2);
  }
};

/// A decoder: predicts at each position the token that follows.
class LanguageModel : public torch::nn::Module {
 public:
  /// (B, T) ids, int64, in; (B, T, vocabulary) logits out. Throws
  /// InvalidArgument for more than context() tokens, and on a CPU for ids
  /// outside of the vocabulary.
  virtual torch::Tensor forward(const torch::Tensor& ids) {
    return logits(hidden(ids));
  }

  /// The same up to the last layer: (B, T, width), of which logits() makes the
  /// logits.
  virtual torch::Tensor hidden(const torch::Tensor& ids) = 0;
  /// (..., width) in, (..., vocabulary) out.
  torch::Tensor logits(const torch::Tensor& hidden) const {
    return torch::nn::functional::linear(hidden, head());
  }
  /// The weight of the last layer, (vocabulary, width); it has no bias.
  virtual torch::Tensor head() const = 0;

  /// Without dropout: the tokens `ids` (B, T) follow those that `cache` has,
  /// which gets them. Returns the logits of the last position, (B, vocabulary).
  virtual torch::Tensor next_logits(const torch::Tensor& ids,
                                    KeyValueCache& cache) = 0;

  virtual int64_t vocabulary() const = 0;
  /// The most tokens that it can look at.
  virtual int64_t context() const = 0;
};

}  // namespace lockstep::models
