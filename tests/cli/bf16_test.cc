// bfloat16 is fast only if oneDNN uses the processor's instructions for it.
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace lockstep {
namespace {

bool has_instructions() {
  std::ifstream file("/proc/cpuinfo");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  return contains(text, "avx512_bf16") || contains(text, "amx_bf16");
}

TEST(BFloat16, TakesTheKernelsOfTheProcessor) {
  if (!has_instructions()) {
    GTEST_SKIP() << "the processor has neither avx512_bf16 nor amx_bf16";
  }
  for (const char* model : {"mlp", "cnn", "gpt-char"}) {
    const auto ended =
        run_lockstep({"step-time", "--model", model, "--batch-size", "32",
                      "--steps", "1", "--warmup", "1", "--precision", "bf16"},
                     {{"ONEDNN_VERBOSE", "1"}});
    ASSERT_EQ(ended.code, 0) << ended.err;
    const bool takes_them = contains(ended.out, "avx512_core_bf16") ||
                            contains(ended.out, "avx10_1_512_amx") ||
                            contains(ended.out, "avx512_core_amx");
    EXPECT_TRUE(takes_them) << model << ended.out.substr(0, 2000);
    // A reference loop would take seconds.
    EXPECT_FALSE(contains(ended.out, ",ref:any")) << model;
  }
}

}  // namespace
}  // namespace lockstep
