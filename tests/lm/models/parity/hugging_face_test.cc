// Tier: nightly, by case. Language models.
#include "lockstep/lm/models/hugging_face.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/text.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep {
namespace {

using models::LanguageModel;

// Both compute in float32, in a different order. The logits are of magnitude 1.
constexpr double kTolerance = 1e-4;
// The "20KB" of transformers_models.py.
constexpr uint64_t kShardBytes = 20'000;

constexpr const char* kNames[] = {"gpt2",          "gpt2_untied", "gpt2_base",
                                  "gpt2_own_head", "llama",       "llama_tied",
                                  "llama_own_head"};

std::string run_oracle(const std::string& what, const std::string& folder) {
  return run_python_file(LOCKSTEP_SOURCE_DIR
                         "/tests/checkpoint/parity/transformers_models.py",
                         {what, folder});
}

/// Returns the folder with the models that transformers wrote.
const std::string& oracle_folder() {
  static const TemporaryFolder folder;
  static const std::string path = [] {
    run_oracle("make", folder.path());
    return folder.path();
  }();
  return path;
}

nlohmann::json index_in(const std::string& folder) {
  return nlohmann::json::parse(
      content_of(folder + "/model.safetensors.index.json"));
}

torch::Tensor logits_of(LanguageModel& model, const torch::Tensor& ids) {
  const torch::NoGradGuard no_grad;
  model.eval();
  return model.forward(ids);
}

class HuggingFace : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!python_has("transformers")) {
      GTEST_SKIP() << "the Python package transformers is not there";
    }
  }
};

TEST_P(HuggingFace, ModelsGiveTheSameLogitsHere) {
  const std::string name = GetParam();
  const std::string folder = oracle_folder();
  const auto model = load_hugging_face(folder + "/" + name);
  const std::string of =
      name == "gpt2_base" ? folder + "/gpt2" : folder + "/" + name;
  const auto expected = read_safetensors(of + ".safetensors").tensors;
  ASSERT_EQ(expected[0].first, "ids");
  const auto difference =
      (logits_of(*model, expected[0].second) - expected[1].second).abs().max();
  EXPECT_LT(difference.item<double>(), kTolerance);
  EXPECT_GT(expected[1].second.abs().max().item<double>(), 1);
}

INSTANTIATE_TEST_SUITE_P(Models, HuggingFace, testing::ValuesIn(kNames),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

// All in one run of Python, because importing transformers takes seconds.
TEST(HuggingFaceFolders, AreReadByTransformers) {
  if (!python_has("transformers")) {
    GTEST_SKIP() << "the Python package transformers is not there";
  }
  const TemporaryFolder folder;
  for (const std::string name : kNames) {
    const auto model = load_hugging_face(oracle_folder() + "/" + name);
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->parameters()) parameter.mul_(1.1);
    }
    save_hugging_face(folder.path(name), *model, kShardBytes);
    if (name == "llama_tied") {
      // transformers divides it in the same way.
      EXPECT_EQ(index_in(folder.path(name)),
                index_in(oracle_folder() + "/" + name));
    }
    const auto ids = torch::randint(83, {2, 32}, torch::kInt64);
    write_safetensors(
        folder.path(name + ".safetensors"),
        {.tensors = {{"ids", ids}, {"logits", logits_of(*model, ids)}}});
    const auto again = load_hugging_face(folder.path(name));
    EXPECT_EQ(parameter_digest(*again), parameter_digest(*model));
  }
  const auto differences =
      nlohmann::json::parse(last_line(run_oracle("check", folder.path())));
  ASSERT_EQ(differences.size(), std::size(kNames));
  for (const std::string name : kNames) {
    EXPECT_LT(differences.at(name).get<double>(), kTolerance) << name;
  }
}

}  // namespace
}  // namespace lockstep
