// transformers' AutoTokenizer and AutoConfig read the output of
// `lockstep export`.
// Tier: nightly, by case. Language models.
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/lm/text/bpe_model.h"
#include "lockstep/lm/text/tokenizer.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/program.h"

namespace lockstep::export_test {
namespace {

using nlohmann::json;

// Written to train.txt, so that `chars` has a token for each character.
const std::string kText = "to be  or\nnot, \u00e9ven <s>to</s>";

// Returns a tokenizer like GPT-2's: a token for each byte, and two special
// tokens.
std::string bytes_with_special_tokens() {
  json vocabulary = json::object();
  int id = 0;
  for (const auto& letter : data::letters_of_bytes()) vocabulary[letter] = id++;
  json added = json::array();
  for (const char* text : {"<s>", "</s>"}) {
    added.push_back({{"id", id++},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level{{"type", "ByteLevel"},
                        {"add_prefix_space", false},
                        {"trim_offsets", true},
                        {"use_regex", true}};
  return json{
      {"added_tokens", added},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", json::array()}}}}
      .dump();
}

TEST(AutoTokenizer, ReadsWhatExportWrites) {
  if (!python_has("transformers")) GTEST_SKIP() << "needs transformers";
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 40; ++i) text += kText + "\n";
  write_text(folder.path("train.txt"), text);
  write_text(folder.path("bpe.json"), bytes_with_special_tokens());
  for (const std::string& tokenizer :
       {std::string("chars"), std::string("bytes"), folder.path("bpe.json")}) {
    const std::string run = folder.path("run"), hf = folder.path("hf");
    std::filesystem::remove_all(run);
    std::filesystem::remove_all(hf);
    const Ended trained = run_lockstep(
        {"train", "--model", "gpt-nano", "--context", "16", "--data-file",
         folder.path("train.txt"), "--tokenizer", tokenizer, "--max-steps", "1",
         "--batch-size", "2", "--no-eval", "--quiet", "--out-dir", run});
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Ended exported =
        run_lockstep({"export", "--checkpoint", run, "--out-dir", hf});
    ASSERT_EQ(exported.code, 0) << exported.err;
    const std::string script = R"(
import json, sys
from transformers import AutoConfig, AutoTokenizer
folder, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
config = AutoConfig.from_pretrained(folder)
ids = tokenizer(text)["input_ids"]
print(json.dumps({"ids": ids, "text": tokenizer.decode(ids),
                  "names": [tokenizer.bos_token, tokenizer.eos_token],
                  "tokens": [tokenizer.bos_token_id, tokenizer.eos_token_id],
                  "config": [config.bos_token_id, config.eos_token_id]}))
)";
    write_text(folder.path("read.py"), script);
    // Warnings come first.
    const std::string printed =
        run_python_file(folder.path("read.py"), {hf, kText});
    const size_t start = printed.find("{\"ids\"");
    ASSERT_NE(start, std::string::npos) << printed;
    const json theirs = json::parse(printed.substr(start));
    const bool is_own = tokenizer == "chars" || tokenizer == "bytes";
    const auto ours = data::open_tokenizer(
        hf + (is_own ? "/lockstep_tokenizer.json" : "/tokenizer.json"));
    EXPECT_EQ(theirs["ids"].get<std::vector<uint32_t>>(), ours->encode(kText))
        << tokenizer;
    EXPECT_EQ(theirs["text"], kText) << tokenizer;
    EXPECT_EQ(theirs["tokens"], theirs["config"]) << tokenizer;
    const json names = is_own ? json{nullptr, nullptr} : json{"<s>", "</s>"};
    EXPECT_EQ(theirs["names"], names) << tokenizer;
  }
}

TEST(Torchvision, LoadsWhatExportWrites) {
  if (!python_has("torchvision")) GTEST_SKIP() << "needs torchvision";
  const TemporaryFolder folder;
  const std::string run = folder.path("run"), out = folder.path("out");
  const Ended trained = run_lockstep(
      {"train", "--model", "resnet18", "--batch-size", "4", "--max-steps", "1",
       "--no-eval", "--quiet", "--out-dir", run});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const Ended exported =
      run_lockstep({"export", "--checkpoint", run, "--out-dir", out});
  ASSERT_EQ(exported.code, 0) << exported.err;
  write_text(folder.path("load.py"), R"(
import sys, torch, torchvision
from safetensors.torch import load_file
net = torchvision.models.resnet18(num_classes=10)
net.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)
net.maxpool = torch.nn.Identity()
net.load_state_dict(load_file(sys.argv[1] + "/model.safetensors"))
print(sum(p.numel() for p in net.parameters()))
)");
  EXPECT_EQ(run_python_file(folder.path("load.py"), {out}), "11173962\n");
}

}  // namespace
}  // namespace lockstep::export_test
