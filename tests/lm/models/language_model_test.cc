#include "lockstep/lm/models/language_model.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>

#include "lockstep/models/model.h"
#include "tests/base/error_code_of.h"

namespace lockstep::models {
namespace {

LanguageModelSpec small(const std::string& name) {
  LanguageModelSpec spec = language_spec(name);
  spec.vocabulary = 37;
  spec.context = 24;
  spec.layers = 2;
  return spec;
}

torch::Tensor some_ids(int64_t batch, int64_t tokens) {
  return torch::randint(37, {batch, tokens}, torch::kInt64);
}

// The published numbers: for GPT-2 as Hugging Face counts them (the paper's
// number was wrong), and for SmolLM-135M and TinyLlama-1.1B.
TEST(LanguageModelSpec, CountsTheParametersOfPublishedModels) {
  EXPECT_EQ(count_parameters(language_spec("gpt2")), 124'439'808);
  EXPECT_EQ(count_parameters(language_spec("gpt2-medium")), 354'823'168);
  EXPECT_EQ(count_parameters(language_spec("gpt2-large")), 774'030'080);
  EXPECT_EQ(count_parameters(language_spec("gpt2-xl")), 1'557'611'200);
  EXPECT_EQ(count_parameters(language_spec("llama-135m")), 134'515'008);
  EXPECT_EQ(count_parameters(language_spec("llama-1.1b")), 1'100'048'384);
}

// PyTorch counts the same for the model of bench/pytorch_step_time.py.
TEST(LanguageModelSpec, CountsTheParametersOfTheWideModel) {
  EXPECT_EQ(count_parameters(language_spec("gpt-wide")), 52'971'264);
}

// torch.utils.flop_counter counts the same for the models of transformers.
TEST(LanguageModelSpec, KnowsItsOperations) {
  LanguageModelSpec gpt2 = language_spec("gpt2");
  gpt2.context = 128;
  EXPECT_EQ(training_flops_of_token(gpt2), 755'347'968);
  EXPECT_EQ(training_flops_of_token(language_spec("gpt-char")), 5'161'728);
  EXPECT_EQ(training_flops_of_token(language_spec("llama-char")), 4'793'088);
}

TEST(LanguageModelSpec, IsTheSameAfterBeingText) {
  LanguageModelSpec spec = small("llama-char");
  spec.norm_epsilon = 1e-6;
  spec.rope_theta = 500000;
  spec.is_tied = false;
  EXPECT_EQ(language_spec_from_settings(to_settings(spec)), spec);
}

TEST(LanguageModelSpec, RefusesSizesThatCannotBe) {
  const auto refused = [](auto change) {
    LanguageModelSpec spec = small("llama-char");
    change(spec);
    EXPECT_EQ(error_code_of([&] { make_language_model(spec); }),
              ErrorCode::kBadOption);
  };
  refused([](LanguageModelSpec& spec) { spec.layers = 0; });
  refused([](LanguageModelSpec& spec) { spec.heads = 3; });
  refused([](LanguageModelSpec& spec) { spec.key_value_heads = 3; });
  refused([](LanguageModelSpec& spec) { spec.vocabulary = int64_t{1} << 40; });
  refused([](LanguageModelSpec& spec) { spec.dropout = 1; });
  refused([](LanguageModelSpec& spec) { spec.norm_epsilon = 0; });
  EXPECT_EQ(error_code_of([] { language_spec("gpt-chr"); }),
            ErrorCode::kUnknownName);
}

class LanguageModels : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<LanguageModel> make() const {
    torch::manual_seed(3);
    auto model = make_language_model(small(GetParam()));
    model->eval();
    return model;
  }
};

TEST_P(LanguageModels, HaveTheParametersThatTheirSpecCounts) {
  for (const bool is_tied : {true, false}) {
    LanguageModelSpec spec = small(GetParam());
    spec.is_tied = is_tied;
    EXPECT_EQ(count_parameters(*make_language_model(spec)),
              count_parameters(spec));
  }
}

TEST_P(LanguageModels, LookAtNoTokenThatFollows) {
  const auto model = make();
  const auto ids = some_ids(2, 12);
  auto changed = ids.clone();
  changed.slice(1, 7) = (changed.slice(1, 7) + 1) % 37;
  const torch::NoGradGuard no_grad;
  const auto before = model->forward(ids);
  const auto after = model->forward(changed);
  EXPECT_TRUE(before.slice(1, 0, 7).equal(after.slice(1, 0, 7)));
  EXPECT_FALSE(before.slice(1, 7).allclose(after.slice(1, 7)));
}

// Rounding differs, because the products have different shapes.
TEST_P(LanguageModels, GiveTheSameLogitsTokenByTokenWithACache) {
  const auto model = make();
  const auto ids = some_ids(2, 20);
  const torch::NoGradGuard no_grad;
  const auto expected = model->forward(ids);
  KeyValueCache cache;
  std::vector<torch::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t end : {5, 6, 7, 15, 16, 20}) {
    parts.push_back(
        model->logits(model->hidden(ids.slice(1, begin, end), &cache)));
    EXPECT_EQ(cache.tokens(), end);
    begin = end;
  }
  EXPECT_TRUE(torch::cat(parts, 1).allclose(expected, 1e-4, 1e-5));
}

TEST_P(LanguageModels, AreCopiedByClone) {
  const auto model = make();
  const auto copy = std::dynamic_pointer_cast<LanguageModel>(model->clone());
  const auto ids = some_ids(1, 9);
  EXPECT_TRUE(model->forward(ids).equal(copy->forward(ids)));
  EXPECT_FALSE(model->head().is_alias_of(copy->head()));
}

TEST_P(LanguageModels, RefuseWhatTheyCannotLookAt) {
  const auto model = make();
  const auto refused = [&](const torch::Tensor& ids) {
    EXPECT_EQ(error_code_of([&] { model->forward(ids); }),
              ErrorCode::kBadTensor);
  };
  refused(some_ids(1, 25));
  refused(some_ids(1, 8).fill_(37));
  refused(some_ids(1, 8).fill_(-1));
  refused(some_ids(1, 8).flatten());
  refused(some_ids(1, 8).to(torch::kFloat32));
  refused(some_ids(1, 0));
  KeyValueCache cache;
  const torch::NoGradGuard no_grad;
  model->hidden(some_ids(1, 20), &cache);
  EXPECT_EQ(error_code_of([&] { model->hidden(some_ids(1, 5), &cache); }),
            ErrorCode::kBadTensor);
}

// The mean loss of an untrained model is ln(vocabulary).
TEST_P(LanguageModels, KnowNothingAtFirst) {
  const auto model = make();
  const auto ids = some_ids(4, 24);
  const auto loss = torch::nn::functional::cross_entropy(
      model->forward(ids).flatten(0, 1), some_ids(4, 24).flatten());
  EXPECT_NEAR(loss.item<double>(), std::log(37), 0.3);
}

INSTANTIATE_TEST_SUITE_P(Architectures, LanguageModels,
                         testing::Values("gpt-char", "llama-char"),
                         [](const auto& info) {
                           return std::string(info.param) == "gpt-char"
                                      ? "gpt"
                                      : "llama";
                         });

}  // namespace
}  // namespace lockstep::models
