#include "lockstep/checkpoint/weights.h"

#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/base/error_code_of.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kFirst = "model-00001-of-00002.safetensors";
const std::string kSecond = "model-00002-of-00002.safetensors";
constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// A folder with a, b (in the first file) and c (in the second one).
class WeightsInTwoFiles : public testing::Test {
 protected:
  void SetUp() override {
    EXPECT_EQ(write_weights(path(), tensors_, 200), 2u);
    index_ = json::parse(content_of(path(kIndex)));
  }

  std::string path(const std::string& name = "") const {
    return folder_.path("model") + (name.empty() ? "" : "/" + name);
  }
  void write_index(const std::string& text) const {
    write_text(path(kIndex), text);
  }
  void write_weight_map(const json& map) const {
    write_index(json{{"weight_map", map}}.dump());
  }
  /// Expects that the folder is refused with a message that has `parts`.
  void expect_refused(const std::vector<std::string>& parts) const {
    const auto message =
        error_of<CheckpointError>([&] { read_weights(path()); });
    expect_problem(message, ErrorCode::kMalformedData, parts);
    EXPECT_EQ(message,
              error_of<CheckpointError>([&] { read_weight_headers(path()); }));
  }

  const NamedTensors tensors_{{"a", torch::rand({5, 5})},
                              {"b", torch::arange(6)},
                              {"c", torch::rand({4, 4}, torch::kFloat64)}};
  json index_;

 private:
  const TemporaryFolder folder_;
};

TEST_F(WeightsInTwoFiles, AreReadAsTheyWereWritten) {
  EXPECT_TRUE(has_weights(path()));
  EXPECT_EQ(parameter_digest(read_weights(path())), parameter_digest(tensors_));
  EXPECT_EQ(read_weight_headers(path()).at(path(kSecond)).entries[0].name, "c");
  const json expected{
      {"metadata", {{"total_size", 276}, {"total_parameters", 47}}},
      {"weight_map", {{"a", kFirst}, {"b", kFirst}, {"c", kSecond}}}};
  EXPECT_EQ(index_, expected);
}

TEST_F(WeightsInTwoFiles, AreLoadedIntoAModule) {
  torch::nn::Linear saved(3, 4), loaded(3, 4);
  const TemporaryFolder folder;
  EXPECT_EQ(write_weights(folder.path("m"), state_dict(*saved), 48), 2u);
  load(*loaded, folder.path("m"));
  EXPECT_EQ(parameter_digest(*loaded), parameter_digest(*saved));
}

// As transformers and huggingface_hub do.
TEST_F(WeightsInTwoFiles, GiveATensorThatIsTooLargeAFileOfItsOwn) {
  const TemporaryFolder folder;
  const auto tensor_with_bytes = [](int64_t bytes) {
    return torch::zeros(bytes, torch::kUInt8);
  };
  const NamedTensors tensors{
      {"a", tensor_with_bytes(2)}, {"b", tensor_with_bytes(6)},
      {"c", tensor_with_bytes(2)}, {"d", tensor_with_bytes(0)},
      {"e", tensor_with_bytes(1)}, {"f", tensor_with_bytes(9)}};
  EXPECT_EQ(write_weights(folder.path("m"), tensors, 4), 4u);
  const auto map =
      json::parse(content_of(folder.path("m/") + kIndex))["weight_map"];
  const auto file = [](int number) {
    return "model-0000" + std::to_string(number) + "-of-00004.safetensors";
  };
  EXPECT_EQ(map, (json{{"b", file(1)},
                       {"a", file(2)},
                       {"c", file(2)},
                       {"d", file(2)},
                       {"f", file(3)},
                       {"e", file(4)}}));
  EXPECT_EQ(write_weights(folder.path("one"), tensors, 20), 1u);
  EXPECT_EQ(only_entry(folder.path("one")).filename(), kSingle);
  EXPECT_EQ(write_weights(folder.path("none"), {}, 20), 1u);
  EXPECT_TRUE(read_weights(folder.path("none")).empty());
}

TEST_F(WeightsInTwoFiles, AreNotReadIfThereIsASingleFile) {
  const NamedTensors other{{"d", torch::rand(3)}};
  write_safetensors(path(kSingle), {.tensors = other, .metadata = {}});
  write_index("not JSON");
  EXPECT_EQ(parameter_digest(read_weights(path())), parameter_digest(other));
}

TEST_F(WeightsInTwoFiles, AreNotWrittenOverOthers) {
  EXPECT_EQ(error_code_of([&] { write_weights(path(), tensors_, 200); }),
            ErrorCode::kCheckpointNotSaved);
}

TEST_F(WeightsInTwoFiles, AreRefusedIfTheIndexNamesOtherFiles) {
  json map = index_["weight_map"];
  for (const json& file :
       {json("../model/" + kSecond), json("/etc/passwd"), json(".safetensors"),
        json(""), json(".."), json("model.bin"), json(7), json(nullptr),
        json(json::array()), json(std::string("a\0.safetensors", 14))}) {
    map["c"] = file;
    write_weight_map(map);
    expect_refused({kIndex, "tensor \"c\"", "in this folder"});
  }
  map["c"] = "model-00003-of-00003.safetensors";
  write_weight_map(map);
  expect_refused({kIndex, "tensor \"c\"", "model-00003-of-00003.safetensors"});
}

TEST_F(WeightsInTwoFiles, AreRefusedIfTheFilesHaveOtherTensors) {
  const json map = index_["weight_map"];
  json changed = map;
  changed["b"] = kSecond;
  write_weight_map(changed);
  expect_refused({kIndex, kFirst, "tensor \"b\" in \"" + kSecond + "\""});

  changed = map;
  changed.erase("b");
  write_weight_map(changed);
  expect_refused({kIndex, kFirst, "tensor \"b\" in no file"});

  changed = map;
  changed["d"] = kSecond;
  write_weight_map(changed);
  expect_refused({kIndex, kSecond, "tensor \"d\"", "a file without it"});

  // A tensor is in both files.
  write_weight_map(map);
  write_safetensors(path(kSecond),
                    {.tensors = {tensors_[0], tensors_[2]}, .metadata = {}});
  expect_refused({kIndex, kSecond, "tensor \"a\" in \"" + kFirst + "\""});
}

TEST_F(WeightsInTwoFiles, AreRefusedIfTheIndexIsNone) {
  for (const std::string text :
       {"", "{", "[]", "7", "{}", R"({"weight_map": 7})",
        R"({"weight_map": {}})", R"({"weight_map": {"a": "b", "a": "b"}})",
        R"({"metadata": [[[[[[1]]]]]], "weight_map": {}})"}) {
    write_index(text);
    expect_refused({kIndex});
  }
  fs::resize_file(path(kIndex), (64 << 20) + 1);
  EXPECT_EQ(error_code_of([&] { read_weights(path()); }),
            ErrorCode::kFileTooLarge);
}

TEST_F(WeightsInTwoFiles, AreRefusedIfAFileIsMissingOrNoFile) {
  fs::rename(path(kSecond), path("elsewhere"));
  expect_refused({kIndex, kSecond, "tensor \"c\"", "no such file"});
  fs::create_symlink("nowhere", path(kSecond));
  expect_refused({kIndex, kSecond, "tensor \"c\"", "no such file"});
  fs::remove(path(kSecond));
  fs::create_symlink("/dev/zero", path(kSecond));
  EXPECT_EQ(error_code_of([&] { read_weights(path()); }),
            ErrorCode::kFileAccess);
  // The files in the cache of huggingface_hub are links.
  fs::remove(path(kSecond));
  fs::create_symlink("elsewhere", path(kSecond));
  EXPECT_EQ(read_weights(path()).size(), 3u);
}

TEST_F(WeightsInTwoFiles, AreRefusedIfAFileIsCut) {
  fs::resize_file(path(kSecond), fs::file_size(path(kSecond)) - 1);
  expect_refused({kSecond});
}

TEST(Weights, AreNotFoundInAnEmptyFolder) {
  const TemporaryFolder folder;
  EXPECT_FALSE(has_weights(folder.path()));
  EXPECT_EQ(error_code_of([&] { read_weights(folder.path()); }),
            ErrorCode::kCheckpointMissing);
}

TEST(Weights, OfADistributedCheckpointAreRefusedWithTheConversion) {
  const TemporaryFolder folder;
  write_text(folder.path("plain/.metadata"), "pickle");
  write_text(folder.path("parts/shard-00001-model-00001-of-00001.safetensors"),
             "");
  write_text(folder.path(
                 "failed/sharded/shard-00001-model-00001-of-00001.safetensors"),
             "");
  const auto expect_conversion = [&](const std::string& name,
                                     const std::string& reader) {
    const std::string path = folder.path(name);
    expect_problem(error_of<CheckpointError>([&] { read_weights(path); }),
                   ErrorCode::kMalformedData,
                   {path, reader, path + "/model.safetensors"});
  };
  expect_conversion("plain", "FileSystemReader('" + folder.path("plain"));
  expect_conversion("parts",
                    "HuggingFaceStorageReader('" + folder.path("parts"));
  expect_conversion(
      "failed", "HuggingFaceStorageReader('" + folder.path("failed/sharded"));
}

}  // namespace
}  // namespace lockstep
