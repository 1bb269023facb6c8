#include "lockstep/base/text.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

const std::vector<std::string> kModels = {"mlp", "resnet18", "resnet34"};

TEST(LastLine, SkipsBlankOnesAtTheEnd) {
  EXPECT_EQ(last_line("a\nb\n\n  \n"), "b");
  EXPECT_EQ(last_line("only"), "only");
  EXPECT_EQ(last_line(" \n"), "");
}

TEST(Nearest, FindsEachKindOfSlip) {
  EXPECT_EQ(nearest("resnet18", kModels), "resnet18");
  EXPECT_EQ(nearest("resnet8", kModels), "resnet18");    // left out
  EXPECT_EQ(nearest("reesnet34", kModels), "resnet34");  // put in
  EXPECT_EQ(nearest("resnet_4", kModels), "resnet34");   // replaced
  EXPECT_EQ(nearest("mpl", kModels), "mlp");             // swapped
  EXPECT_EQ(nearest("ResNet18", kModels), "resnet18");   // case
  EXPECT_EQ(nearest("rensnet-18", kModels), "resnet18");
}

TEST(Nearest, PrefersTheFewestEdits) {
  EXPECT_EQ(nearest("--batch-sise", {"--batch", "--batch-size", "--base"}),
            "--batch-size");
}

TEST(Nearest, IsEmptyForAnotherWord) {
  EXPECT_EQ(nearest("transformer", kModels), "");
  EXPECT_EQ(nearest("x", kModels), "");
  EXPECT_EQ(nearest("", kModels), "");
  EXPECT_EQ(nearest("q", {"x"}), "");
  EXPECT_EQ(nearest("mlp", {}), "");
}

TEST(DidYouMean, ListsWhatIsKnown) {
  EXPECT_EQ(did_you_mean("resnet19", kModels),
            "did you mean 'resnet18'? Known are mlp, resnet18, resnet34");
  EXPECT_EQ(did_you_mean("gpt", {"mlp", "vgg"}), "known are mlp, vgg");
  EXPECT_EQ(did_you_mean("gpt", {}), "none are known");
}

}  // namespace
}  // namespace lockstep
