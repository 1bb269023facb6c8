#include <algorithm>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/base/temporary_folder.h"

// LLVMFuzzerTestOneInput of tests/fuzz/<name>_fuzz.cc, renamed by CMake.
extern "C" int fuzz_safetensors(const uint8_t* data, size_t size);
extern "C" int fuzz_manifest(const uint8_t* data, size_t size);
extern "C" int fuzz_store(const uint8_t* data, size_t size);
extern "C" int fuzz_token_file(const uint8_t* data, size_t size);
extern "C" int fuzz_tokenizer(const uint8_t* data, size_t size);
extern "C" int fuzz_config(const uint8_t* data, size_t size);
extern "C" int fuzz_image(const uint8_t* data, size_t size);
extern "C" int fuzz_hugging_face(const uint8_t* data, size_t size);

namespace lockstep {
namespace {

using Target = int (*)(const uint8_t* data, size_t size);

std::string corpus(const std::string& name) {
  return LOCKSTEP_SOURCE_DIR "/tests/fuzz/corpus/" + name;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void replay(const std::string& name, Target target) {
  const auto files = files_below(corpus(name));
  EXPECT_FALSE(files.empty());
  for (const std::string& file : files) {
    const std::string content = content_of(file);
    EXPECT_NO_THROW(target(reinterpret_cast<const uint8_t*>(content.data()),
                           content.size()))
        << file;
  }
}

bool is_accepted(const std::string& path) {
  try {
    read_safetensors(path);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

TEST(FuzzCorpus, OfSafeTensorsBreaksNoPromise) {
  replay("safetensors", fuzz_safetensors);
}

TEST(FuzzCorpus, OfManifestsBreaksNoPromise) {
  replay("manifest", fuzz_manifest);
}

TEST(FuzzCorpus, OfTheStoresMessagesBreaksNoPromise) {
  replay("store", fuzz_store);
}

TEST(FuzzCorpus, OfTokenFilesBreaksNoPromise) {
  replay("token_file", fuzz_token_file);
}

TEST(FuzzCorpus, OfTokenizersBreaksNoPromise) {
  replay("tokenizer", fuzz_tokenizer);
}

TEST(FuzzCorpus, OfImagesBreaksNoPromise) { replay("image", fuzz_image); }

TEST(FuzzCorpus, OfHuggingFaceFoldersBreaksNoPromise) {
  replay("hugging_face", fuzz_hugging_face);
}

TEST(FuzzCorpus, OfConfigFilesBreaksNoPromise) {
  replay("config", fuzz_config);
}

TEST(FuzzCorpus, HostileSafeTensorsAreRefused) {
  const auto files = files_below(corpus("safetensors/hostile"));
  EXPECT_GT(files.size(), 50u);
  for (const std::string& file : files) EXPECT_FALSE(is_accepted(file)) << file;
}

TEST(FuzzCorpus, ValidSafeTensorsAreRead) {
  const auto files = files_below(corpus("safetensors/valid"));
  EXPECT_GT(files.size(), 20u);
  for (const std::string& file : files) EXPECT_TRUE(is_accepted(file)) << file;
}

}  // namespace
}  // namespace lockstep
