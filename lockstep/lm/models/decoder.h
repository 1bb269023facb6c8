#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/lm/models/language_model.h"

namespace lockstep::models {

/// Build the models of make_language_model() from a spec that has been checked.
std::shared_ptr<LanguageModel> make_gpt(const LanguageModelSpec& spec,
                                        Init init);
std::shared_ptr<LanguageModel> make_llama(const LanguageModelSpec& spec,
                                          Init init);

/// A submodule with a weight, and perhaps a bias. It gives parameters the same
/// names as in other libraries.
struct Weight : public torch::nn::Module {
  torch::Tensor weight;
  torch::Tensor bias;  ///< undefined: none
};

/// Base of the families of models. Has the table of the tokens, the head, and
/// the initialisation.
class Decoder : public LanguageModel {
 public:
  torch::Tensor head() const override {
    return lm_head_ ? lm_head_->weight : table_->weight;
  }

 protected:
  using Module = torch::nn::Module;

  /// Standard deviation of the initial weights.
  static constexpr double kDeviation = 0.02;

  Decoder(const LanguageModelSpec& spec, Init init)
      : LanguageModel(spec), init_(init) {}

  static std::shared_ptr<Module> add_module(Module& parent,
                                            const std::string& name) {
    return parent.register_module(name, std::make_shared<Module>());
  }
  /// Adds normal weights, and a bias of zeros if `bias` is not 0.
  std::shared_ptr<Weight> add_weight(Module& parent, const char* name,
                                     std::initializer_list<int64_t> shape,
                                     double deviation = kDeviation,
                                     int64_t bias = 0) const;
  /// Adds the weights of a norm, which are ones. GPT-2's have a bias of zeros.
  std::shared_ptr<Weight> add_norm(Module& parent, const char* name) const;
  /// Adds the head, unless it is tied.
  void add_head();
  /// Returns the deviation of the weights before a sum with the residual
  /// stream.
  double deviation_before_sum() const;

  /// Context length below which LibTorch's attention for CPUs is up to four
  /// times as fast in float32 as in a half precision, where each of the small
  /// products sets up a oneDNN primitive. From this length on, both are equally
  /// fast.
  static constexpr int64_t kShortContext = 512;

  /// Returns the attention of each token to itself and to the tokens before it:
  /// softmax(q k^T / sqrt(D)) v (Vaswani et al. 2017, section 3.2). `q` is
  /// (B, H, T, D). `k` and `v` are (B, G, T, D), where each of the G heads
  /// serves H / G heads of q (Ainslie et al. 2023). With a cache, the cached
  /// tokens of `layer` come before these, which are added to the cache. The
  /// result is (B, T, H * D).
  static torch::Tensor causal_attention(const torch::Tensor& q, torch::Tensor k,
                                        torch::Tensor v, double dropout,
                                        int64_t layer, KeyValueCache* cache);

  std::shared_ptr<Weight> table_;

 private:
  const Init init_;
  std::shared_ptr<Weight> lm_head_;  // null: tied
};

}  // namespace lockstep::models
