#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/fuzz/replay.h"

// LLVMFuzzerTestOneInput of tests/fuzz/<name>_fuzz.cc, renamed by CMake.
extern "C" int fuzz_safetensors(const uint8_t* data, size_t size);
extern "C" int fuzz_manifest(const uint8_t* data, size_t size);
extern "C" int fuzz_store(const uint8_t* data, size_t size);
extern "C" int fuzz_config(const uint8_t* data, size_t size);
extern "C" int fuzz_image(const uint8_t* data, size_t size);

namespace lockstep {
namespace {

using fuzz::corpus;
using fuzz::files_below;
using fuzz::replay;

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

TEST(FuzzCorpus, OfImagesBreaksNoPromise) { replay("image", fuzz_image); }

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
