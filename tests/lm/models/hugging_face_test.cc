#include "lockstep/lm/models/hugging_face.h"

#include <filesystem>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/safetensors.h"
#include "tests/base/damaged_json.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

using nlohmann::json;

models::LanguageModelSpec small_spec(const std::string& name) {
  auto spec = models::language_spec(name);
  spec.vocabulary = 19;
  spec.context = 8;
  spec.layers = 2;
  return spec;
}

/// A folder with a model and a config.json that can be changed.
class HuggingFaceFolder : public testing::Test {
 protected:
  void write(const std::string& name) {
    save_hugging_face(path(), *models::make_language_model(small_spec(name)));
    config_ = json::parse(content_of(path() + "/config.json"));
  }
  std::string path() const { return folder_.path("model"); }
  std::optional<ErrorCode> with_config(const std::string& text) const {
    write_text(path() + "/config.json", text);
    return error_code_of([&] { load_hugging_face(path()); });
  }
  std::optional<ErrorCode> with(const std::string& key,
                                const json& value) const {
    json changed = config_;
    changed[key] = value;
    return with_config(changed.dump());
  }

  json config_;

 private:
  const TemporaryFolder folder_;
};

TEST_F(HuggingFaceFolder, IsReadAsItWasWritten) {
  for (const std::string name : {"gpt-char", "llama-char"}) {
    const TemporaryFolder folder;
    const auto model = models::make_language_model(small_spec(name));
    save_hugging_face(folder.path("m"), *model);
    EXPECT_TRUE(is_hugging_face(folder.path("m")));
    const auto again = load_hugging_face(folder.path("m"));
    auto expected = model->spec();
    expected.name = "m";
    EXPECT_EQ(again->spec(), expected);
    EXPECT_EQ(parameter_digest(*again), parameter_digest(*model));
  }
}

TEST_F(HuggingFaceFolder, NamesNoLibraryIfItsConfigIsDamaged) {
  for (const std::string name : {"gpt-char", "llama-char"}) {
    std::filesystem::remove_all(path());
    write(name);
    expect_own_errors(config_, [&](const json& config) {
      write_text(path() + "/config.json", config.dump());
      read_hugging_face_config(path());
    });
  }
}

TEST_F(HuggingFaceFolder, RefusesOptionsOfGpt2ThatItHasNot) {
  write("gpt-char");
  EXPECT_EQ(with("n_ctx", 8), std::nullopt);
  const auto refused = ErrorCode::kMalformedData;
  EXPECT_EQ(with("model_type", "bert"), refused);
  EXPECT_EQ(with("activation_function", "relu"), refused);
  EXPECT_EQ(with("scale_attn_by_inverse_layer_idx", true), refused);
  EXPECT_EQ(with("scale_attn_weights", false), refused);
  EXPECT_EQ(with("add_cross_attention", true), refused);
  EXPECT_EQ(with("n_layer", "two"), refused);
  EXPECT_EQ(with("n_layer", 2.5), refused);
  EXPECT_EQ(with("n_layer", -1), refused);
  EXPECT_EQ(with("n_layer", 1e18), refused);
  EXPECT_EQ(with("n_embd", nullptr), refused);
  EXPECT_EQ(with("layer_norm_epsilon", "small"), refused);
  EXPECT_EQ(with("n_head", 3), ErrorCode::kBadOption);
}

TEST_F(HuggingFaceFolder, RefusesOptionsOfLlamaThatItHasNot) {
  write("llama-char");
  EXPECT_EQ(
      with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}),
      std::nullopt);
  const auto refused = ErrorCode::kMalformedData;
  EXPECT_EQ(with("hidden_act", "gelu"), refused);
  EXPECT_EQ(with("attention_bias", true), refused);
  EXPECT_EQ(with("mlp_bias", true), refused);
  EXPECT_EQ(with("head_dim", 64), refused);
  EXPECT_EQ(with("rope_scaling", {{"factor", 8}}), refused);
  EXPECT_EQ(with("rope_parameters", {{"rope_type", "llama3"}}), refused);
  EXPECT_EQ(with("rope_parameters", 7), refused);
  EXPECT_EQ(with("num_key_value_heads", 3), ErrorCode::kBadOption);
}

TEST_F(HuggingFaceFolder, RefusesConfigsThatAreNone) {
  write("gpt-char");
  for (const std::string text : {"", "{", "[]", "7", "{\"a\":1,\"a\":2}"}) {
    EXPECT_EQ(with_config(text), ErrorCode::kMalformedData) << text;
  }
  EXPECT_EQ(with_config(std::string(2 << 20, ' ')), ErrorCode::kFileTooLarge);
}

TEST_F(HuggingFaceFolder, HasAHeadOfItsOwnIfTheFileSaysSo) {
  for (const std::string name : {"gpt-char", "llama-char"}) {
    const TemporaryFolder folder;
    const std::string hf = folder.path("m");
    const auto model = models::make_language_model(small_spec(name));
    save_hugging_face(hf, *model);
    const auto with_head = [&](const torch::Tensor& head) {
      auto content = SafeTensors{.tensors = state_dict(*model), .metadata = {}};
      content.tensors.emplace_back("lm_head.weight", head);
      write_safetensors(hf + "/model.safetensors", content);
    };
    with_head(model->head().clone());
    EXPECT_TRUE(load_hugging_face(hf)->spec().is_tied);

    const torch::Tensor own = torch::randn_like(model->head());
    with_head(own);
    const auto untied = load_hugging_face(hf);
    EXPECT_FALSE(untied->spec().is_tied);
    EXPECT_TRUE(untied->head().equal(own));
    save_hugging_face(folder.path("again"), *untied);
    const auto again = load_hugging_face(folder.path("again"));
    EXPECT_EQ(parameter_digest(*again), parameter_digest(*untied));
    // A tied model has no separate weight for it.
    EXPECT_EQ(error_code_of([&] { load_hugging_face(hf, state_dict(*model)); }),
              ErrorCode::kStateMismatch);

    with_head(torch::randn({3, 3}));
    EXPECT_EQ(error_code_of([&] { load_hugging_face(hf); }),
              ErrorCode::kStateMismatch);
  }
}

// It is refused before the model takes the memory that a forged config asks
// for.
TEST_F(HuggingFaceFolder, RefusesAConfigThatPromisesMoreThanTheWeights) {
  write("gpt-char");
  EXPECT_EQ(with("n_layer", 16'000'000), ErrorCode::kStateMismatch);
  EXPECT_EQ(with("vocab_size", 16'000'000), ErrorCode::kStateMismatch);
  EXPECT_EQ(with("vocab_size", 18), ErrorCode::kStateMismatch);
  // The number of parameters does not fit into 64 bits.
  config_["n_embd"] = config_["n_inner"] = 1 << 24;
  EXPECT_EQ(with("n_layer", 1 << 24), ErrorCode::kStateMismatch);
}

TEST_F(HuggingFaceFolder, MayHaveSeveralFiles) {
  const auto model = models::make_language_model(small_spec("llama-char"));
  EXPECT_GT(save_hugging_face(path(), *model, 100'000), 2u);
  EXPECT_TRUE(is_hugging_face(path()));
  EXPECT_EQ(parameter_digest(*load_hugging_face(path())),
            parameter_digest(*model));
}

TEST_F(HuggingFaceFolder, IsNotWrittenOverAnother) {
  write("gpt-char");
  EXPECT_EQ(error_code_of([&] {
              save_hugging_face(
                  path(), *models::make_language_model(small_spec("gpt-char")));
            }),
            ErrorCode::kCheckpointNotSaved);
}

}  // namespace
}  // namespace lockstep
