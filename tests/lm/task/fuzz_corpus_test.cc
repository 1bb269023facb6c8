#include <gtest/gtest.h>

#include "tests/fuzz/replay.h"

// LLVMFuzzerTestOneInput of tests/fuzz/<name>_fuzz.cc, renamed by CMake.
extern "C" int fuzz_token_file(const uint8_t* data, size_t size);
extern "C" int fuzz_tokenizer(const uint8_t* data, size_t size);
extern "C" int fuzz_hugging_face(const uint8_t* data, size_t size);

namespace lockstep {
namespace {

using fuzz::replay;

TEST(LanguageFuzzCorpus, OfTokenFilesBreaksNoPromise) {
  replay("token_file", fuzz_token_file);
}

TEST(LanguageFuzzCorpus, OfTokenizersBreaksNoPromise) {
  replay("tokenizer", fuzz_tokenizer);
}

TEST(LanguageFuzzCorpus, OfHuggingFaceFoldersBreaksNoPromise) {
  replay("hugging_face", fuzz_hugging_face);
}

}  // namespace
}  // namespace lockstep
