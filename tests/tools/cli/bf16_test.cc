// bfloat16 is fast only if oneDNN uses the processor's instructions for it.
// Tier: full, by case. Each case starts the program.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "tests/base/temporary_folder.h"
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

// Like a processor without AVX-512. There LibTorch's own products of bfloat16
// take up to 20 times as long as those of float32.
TEST(BFloat16, TakesProductsInFloat32WithoutInstructions) {
  if (allowed_cores().size() < 2) GTEST_SKIP() << "needs 2 cores";
  for (const char* model : {"mlp", "cnn", "resnet18", "gpt-char"}) {
    const TemporaryFolder folder;
    const std::string text = folder.path("text.txt");
    std::ofstream(text) << std::string(4000, 'a') << "the quick brown fox";
    const auto trained = [&](const std::vector<std::string>& more) {
      std::vector<std::string> arguments = {
          "train",    "--model",
          model,      "--batch-size",
          "4",        "--shards",
          "2",        "--max-steps",
          "2",        "--precision",
          "bf16",     "--no-eval",
          "--report", folder.path("report.json")};
      if (contains(model, "gpt")) {
        arguments.insert(arguments.end(), {"--data-file", text});
      }
      arguments.insert(arguments.end(), more.begin(), more.end());
      const auto ended = run_lockstep(
          arguments, {{"ONEDNN_MAX_CPU_ISA", "AVX2"}, {"ONEDNN_VERBOSE", "1"}});
      EXPECT_EQ(ended.code, 0) << ended.err;
      EXPECT_EQ(count_of(ended.err, "this CPU has no AMX or AVX512_BF16"), 1)
          << ended.err;
      // Operands of oneDNN, such as src_bf16::blocked:ab.
      EXPECT_FALSE(contains(ended.out, "bf16::")) << model << ended.out;
      return nlohmann::json::parse(
                 content_of(folder.path("report.json")))["parameter_sha256"]
          .get<std::string>();
    };
    const std::string single = trained({"--strategy", "single"});
    EXPECT_EQ(trained({"--strategy", "dp", "--devices", "2xcpu"}), single);
    EXPECT_EQ(trained({"--strategy", "ddp", "--devices", "2xcpu"}), single);
  }
}

}  // namespace
}  // namespace lockstep
