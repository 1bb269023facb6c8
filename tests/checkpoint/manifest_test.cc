// Tests what a checkpoint's manifest must not contain.
#include "lockstep/checkpoint/manifest.h"

#include <filesystem>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/models/model.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::manifest_test {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;

Manifest sample() {
  Manifest manifest;
  manifest.info = {.model = {{"name", "mlp"}, {"width", "77"}},
                   .step = 30,
                   .epoch = 2,
                   .parameter_sha256 = checksum_of("p"),
                   .run = RunRecord{.position = {.step = 30,
                                                 .epoch = 2,
                                                 .batch = 4,
                                                 .samples = 6,
                                                 .sums = {{"loss", 1.0 / 3}}},
                                    .settings = {{"lr", "0.1"}},
                                    .versions = {{"torch", "2.11"}}}};
  manifest.files = {
      {.name = "model.safetensors", .bytes = 10, .xxh128 = checksum_of("m")}};
  manifest.not_finite = {"mask"};
  return manifest;
}

// Adds a valid checksum, as an attacker would.
std::string signed_text(json object) {
  object.erase("manifest_xxh128");
  object["manifest_xxh128"] = checksum_of(object.dump());
  return object.dump();
}

std::string refusal(const std::string& text) {
  return error_of<CheckpointError>([&] { parse_manifest("M", text); });
}

// Without them, the run would continue with different random numbers.
TEST(Manifest, OfARunNamesTheStatesOfItsRandomNumbers) {
  const TemporaryFolder folder;
  Manifest manifest = sample();
  write_text(folder.path("model.safetensors"), "0123456789");
  manifest.files[0].xxh128 = checksum_of("0123456789");
  write_text(folder.path("manifest.json"), format_manifest(manifest));
  expect_problem(
      error_of<CheckpointError>([&] { read_manifest(folder.path()); }),
      ErrorCode::kCheckpointDamaged, {folder.path(), kRandomFile});
  manifest.info.run.reset();  // a program's own checkpoint doesn't need it
  write_text(folder.path("manifest.json"), format_manifest(manifest));
  EXPECT_EQ(read_manifest(folder.path()).files.size(), 1u);
}

TEST(Manifest, IsReadAsItWasWritten) {
  const std::string text = format_manifest(sample());
  const Manifest read = parse_manifest("M", text);
  EXPECT_EQ(format_manifest(read), text);
  EXPECT_EQ(read.info.run->position.sums.at("loss"), 1.0 / 3);
  EXPECT_EQ(read.info.run->settings.at("lr"), "0.1");
  EXPECT_EQ(read.not_finite, std::vector<std::string>{"mask"});
}

// A flipped bit is detected, or has no effect on the meaning.
TEST(Manifest, WithAFlippedBitIsRefusedOrMeansTheSame) {
  const std::string text = format_manifest(sample());
  size_t refused = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      try {
        EXPECT_EQ(format_manifest(parse_manifest("M", damaged)), text)
            << "byte " << at << ", bit " << bit;
      } catch (const CheckpointError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, text.size() * 6);
}

TEST(Manifest, CutShortIsRefused) {
  const std::string text = format_manifest(sample());
  for (size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_NE(refusal(text.substr(0, size)), "") << size;
  }
}

// A caller handles it differently from damage: the checkpoint is good.
TEST(Manifest, OfAnotherVersionSaysSo) {
  json object = json::parse(format_manifest(sample()));
  object["lockstep_checkpoint"] = 1;
  expect_problem(refusal(signed_text(object)), ErrorCode::kCheckpointVersion,
                 {"an older version", "expected checkpoint format 3",
                  "got format 1", "use the version of Lockstep that wrote it"});
  object["lockstep_checkpoint"] = 4;
  expect_problem(refusal(signed_text(object)), ErrorCode::kCheckpointVersion,
                 {"a newer version", "expected checkpoint format 3",
                  "got format 4", "update Lockstep"});
}

TEST(Manifest, NamesNoFileOutsideOfItsFolder) {
  for (const char* name :
       {"../model.safetensors", "/etc/passwd", "a/b.safetensors", "..",
        ".hidden.safetensors", "model.txt", "", "a\\b.safetensors",
        "model.safetensors\n", "MODEL.safetensors"}) {
    json object = json::parse(format_manifest(sample()));
    object["files"][name] = object["files"]["model.safetensors"];
    EXPECT_PRED2(contains, refusal(signed_text(object)),
                 "names of files in the folder")
        << name;
  }
}

TEST(Manifest, HasNumbersThatCanBe) {
  const json good = json::parse(format_manifest(sample()));
  const auto refuses = [&](const char* path, const json& value) {
    json object = good;
    object[json::json_pointer(path)] = value;
    EXPECT_NE(refusal(signed_text(object)), "") << path << " " << value;
  };
  for (const char* path :
       {"/step", "/epoch", "/files/model.safetensors/bytes",
        "/run/position/step", "/run/position/batch", "/run/position/samples"}) {
    for (const json& value :
         {json(-1), json(1.5), json("3"), json(nullptr), json::array(),
          json(std::numeric_limits<uint64_t>::max())}) {
      refuses(path, value);
    }
  }
  refuses("/model/width", 8);
  refuses("/model/name", 8);
  refuses("/run/settings", json::array({1}));
  refuses("/run/settings/lr", 0.1);
  refuses("/run/sums", json::array({1}));
  refuses("/run/sums/loss", "much");
  refuses("/files/model.safetensors/xxh128", "short");
  refuses("/files", json::array());
  refuses("/not_finite", json::array({1}));
  refuses("/model", "mlp");
}

TEST(Manifest, NestedWithoutEndIsRefused) {
  std::string text = R"({"a":)";
  for (int i = 0; i < 200'000; ++i) text += "[";
  EXPECT_PRED2(contains, refusal(text), "nests its entries too deep");
}

TEST(Manifest, SaysNothingTwice) {
  std::string text = format_manifest(sample());
  text.insert(1, "\"step\": 7,");
  EXPECT_PRED2(contains, refusal(text), "has \"step\" twice");
}

class Net : public models::Model {
 public:
  Net() {
    fc = register_module("fc", torch::nn::Linear(3, 4));
    mask = register_buffer("mask", torch::zeros({4}));
  }
  torch::Tensor forward(const torch::Tensor& x) override { return fc(x); }
  torch::nn::Linear fc{nullptr};
  torch::Tensor mask;
};

class CheckpointOfANet : public testing::Test {
 protected:
  std::string save(int64_t step = 1) {
    return save_checkpoint(folder_.path(), net_, *optimizer_, {.step = step});
  }
  // Changes a file as somebody who can compute checksums would.
  void forge(const std::string& path, const std::string& name,
             const torch::Tensor& tensor) {
    SafeTensors content = read_safetensors(path + "/model.safetensors");
    for (auto& [key, value] : content.tensors) {
      if (key == name) value = tensor;
    }
    Checksum checksum;
    write_safetensors(path + "/model.safetensors", content, &checksum);
    json object = json::parse(content_of(path + "/manifest.json"));
    object["files"]["model.safetensors"]["xxh128"] = checksum.hex();
    write_text(path + "/manifest.json", signed_text(object));
  }

  const TemporaryFolder folder_;
  Net net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_ =
      std::make_unique<torch::optim::SGD>(
          net_.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
};

TEST_F(CheckpointOfANet, BringsNoNanWhereThereWasNone) {
  const std::string path = save();
  torch::Tensor spoilt = net_.fc->bias.detach().clone();
  spoilt[2] = std::numeric_limits<float>::quiet_NaN();
  forge(path, "fc.bias", spoilt);
  const std::string before = parameter_digest(net_);
  expect_problem(
      error_of<CheckpointError>([&] { load_checkpoint(path, net_); }),
      ErrorCode::kCheckpointDamaged, {path, "fc.bias", "nan in 1 of 4"});
  EXPECT_EQ(parameter_digest(net_), before);
}

TEST_F(CheckpointOfANet, MayHoldAMaskOfInfinities) {
  net_.mask.fill_(-std::numeric_limits<float>::infinity());
  const std::string path = save();
  const std::string digest = parameter_digest(net_);
  net_.mask.zero_();
  load_checkpoint(path, net_, optimizer_.get());
  EXPECT_EQ(parameter_digest(net_), digest);
}

TEST_F(CheckpointOfANet, IsNotWrittenOfAParameterThatIsNotFinite) {
  const std::string good = save(1);
  {
    const torch::NoGradGuard no_grad;
    net_.fc->weight[1][1] = std::numeric_limits<float>::infinity();
  }
  expect_problem(error_of<CheckpointError>([&] { save(2); }),
                 ErrorCode::kCheckpointNotSaved,
                 {"not finite", "fc.weight", "inf in 1 of 12"});
  EXPECT_EQ(find_checkpoint(folder_.path()), good);
}

TEST_F(CheckpointOfANet, IsNoLinkToAnotherFile) {
  const std::string path = save();
  const std::string file = path + "/model.safetensors";
  fs::rename(file, folder_.path("elsewhere"));
  fs::create_symlink(folder_.path("elsewhere"), file);
  expect_problem(
      error_of<CheckpointError>([&] { load_checkpoint(path, net_); }),
      ErrorCode::kCheckpointDamaged, {file});
}

}  // namespace
}  // namespace lockstep::manifest_test
