// Checkpoints with contents that were replaced and sealed again, passed to
// eval.
// Tier: full, by case. Each case starts the program.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/types.h>

#include "lockstep/base/checksum.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

using nlohmann::json;

class ForgedCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    const Ended ended = run_lockstep(
        {"train", "--model", "mlp", "--max-steps", "1", "--batch-size", "4",
         "--no-eval", "--quiet", "--out-dir", folder_.path("run")});
    ASSERT_EQ(ended.code, 0) << ended.err;
    path_ = find_checkpoint(folder_.path("run"));
  }

  void forge(const std::function<void(json&)>& change) {
    json object = json::parse(std::ifstream(path_ + "/manifest.json"));
    change(object);
    object.erase("manifest_xxh128");
    object["manifest_xxh128"] = checksum_of(object.dump());
    std::ofstream(path_ + "/manifest.json") << object.dump();
  }

  /// Expects that eval ends with 1 and prints each of `parts`.
  void expect_refused(const std::vector<std::string>& parts) {
    const Ended ended = run_lockstep(
        {"eval", "--checkpoint", path_, "--devices", "cpu", "--json"});
    EXPECT_EQ(ended.code, 1) << ended.out;
    for (const std::string& part : parts) {
      EXPECT_PRED2(contains, ended.err, part);
    }
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(ForgedCheckpoint, OfADeeperModelIsRefusedByEval) {
  forge([](json& object) { object["model"]["depth"] = "200000"; });
  expect_refused({path_ + "/manifest.json describes a model that is not in it",
                  "depth 200000"});
}

TEST_F(ForgedCheckpoint, OfAModelThatIsNotKnownIsRefusedByEval) {
  forge([](json& object) { object["model"] = {{"name", "spirals"}}; });
  expect_refused({path_, "can't build", "resnet18", "got spirals"});
  forge([](json& object) { object["model"] = json::object(); });
  expect_refused({"a model without a name"});
}

TEST_F(ForgedCheckpoint, WithAnotherDigestIsRefusedByEval) {
  std::string right;
  forge([&](json& object) {
    right = object["parameter_sha256"];
    object["parameter_sha256"] = std::string(64, '0');
  });
  expect_refused({path_ + " has other parameters than its manifest says",
                  "expected parameter_sha256 " + std::string(64, '0'),
                  "got " + right});
}

TEST_F(ForgedCheckpoint, WithAnIntegerWeightIsRefusedByEval) {
  const std::string file = path_ + "/model.safetensors";
  SafeTensors content = read_safetensors(file);
  for (auto& [name, tensor] : content.tensors) {
    if (name == "0.weight") tensor = (tensor * 100).to(torch::kInt32);
  }
  Checksum checksum;
  write_safetensors(file, content, &checksum);
  forge([&](json& object) {
    object["parameter_sha256"] = parameter_digest(content.tensors);
    object["files"]["model.safetensors"] = {
        {"bytes", std::filesystem::file_size(file)},
        {"xxh128", checksum.hex()}};
  });
  expect_refused({file + " does not fit the model; 1 of another type: "
                         "0.weight (expected Float, got Int)"});
}

}  // namespace
}  // namespace lockstep
