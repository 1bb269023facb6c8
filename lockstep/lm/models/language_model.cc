#include "lockstep/lm/models/language_model.h"

#include <algorithm>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/lm/models/decoder.h"
#include "lockstep/models/layers.h"
#include "lockstep/models/product.h"

namespace lockstep::models {

torch::Tensor LanguageModel::hidden(const torch::Tensor& ids,
                                    KeyValueCache* cache) {
  const int64_t past = cache == nullptr ? 0 : cache->tokens();
  check_ids(ids, past);
  if (cache != nullptr) {
    cache->keys.resize(static_cast<size_t>(spec_.layers));
    cache->values.resize(static_cast<size_t>(spec_.layers));
  }
  torch::Tensor x = embed(ids, past);
  const bool recomputes = spec_.recomputes_activations &&
                          torch::GradMode::is_enabled() && cache == nullptr;
  for (int64_t layer = 0; layer < spec_.layers; ++layer) {
    if (recomputes) {
      // Keeps the module alive until the backward, which may run after its
      // owner is gone.
      auto self = std::static_pointer_cast<LanguageModel>(shared_from_this());
      x = activation_checkpoint(
          [self, layer](const torch::Tensor& input) {
            return self->block(layer, input, 0, nullptr);
          },
          x, block_parameters(layer));
    } else {
      x = block(layer, x, past, cache);
    }
  }
  return last_norm(x);
}

torch::Tensor LanguageModel::logits(const torch::Tensor& hidden) const {
  return multiply_transposed(hidden, head());
}

std::shared_ptr<torch::nn::Module> LanguageModel::clone(
    const std::optional<torch::Device>& device) const {
  return with_state_of(*this, make_language_model(spec_, Init::kNone), device);
}

void LanguageModel::check_ids(const torch::Tensor& ids, int64_t past) const {
  const auto refuse = [&](const std::string& what, const std::string& expected,
                          const std::string& got, const std::string& fix = "") {
    throw InvalidArgument("models", {.code = ErrorCode::kBadTensor,
                                     .what = spec_.name + " " + what,
                                     .expected = expected,
                                     .got = got,
                                     .fix = fix});
  };
  if (ids.dim() != 2 || ids.size(1) == 0 ||
      ids.scalar_type() != torch::kInt64) {
    refuse("can't take this input", "ids of (B, T), int64",
           fmt::format("({}), {}", fmt::join(ids.sizes(), ", "),
                       c10::toString(ids.scalar_type())));
  }
  if (past + ids.size(1) > spec_.context) {
    refuse("can't look at so many tokens",
           fmt::format("at most {}", spec_.context),
           fmt::format("{}", past + ids.size(1)),
           "cut the sequences, or build the model with a longer context");
  }
  // On a GPU, this would wait for the device.
  if (!ids.is_cpu()) return;
  const auto flat = ids.contiguous();
  const std::span<const int64_t> all(flat.data_ptr<int64_t>(),
                                     static_cast<size_t>(flat.numel()));
  const auto bad = std::find_if(all.begin(), all.end(), [&](int64_t id) {
    return id < 0 || id >= spec_.vocabulary;
  });
  if (bad == all.end()) return;
  refuse("has no such token", fmt::format("0 to {}", spec_.vocabulary - 1),
         fmt::format("{}", *bad), "the ids are of another tokenizer");
}

std::shared_ptr<LanguageModel> make_language_model(
    const LanguageModelSpec& spec, Init init) {
  check(spec);
  return spec.architecture == Architecture::kLlama ? make_llama(spec, init)
                                                   : make_gpt(spec, init);
}

}  // namespace lockstep::models
