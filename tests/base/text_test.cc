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

TEST(Trimmed, HasNoBlanksAndTabsAtItsEnds) {
  EXPECT_EQ(trimmed(" \ta b\t "), "a b");
  EXPECT_EQ(trimmed("a"), "a");
  EXPECT_EQ(trimmed(" \t"), "");
  EXPECT_EQ(trimmed(""), "");
}

TEST(Nearest, FindsEachKindOfSlip) {
  EXPECT_EQ(nearest("resnet18", kModels), "resnet18");
  EXPECT_EQ(nearest("resnet8", kModels), "resnet18");    // deletion
  EXPECT_EQ(nearest("reesnet34", kModels), "resnet34");  // insertion
  EXPECT_EQ(nearest("resnet_4", kModels), "resnet34");   // substitution
  EXPECT_EQ(nearest("mpl", kModels), "mlp");             // transposition
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

TEST(WithoutTags, LeavesTheTextOfAnError) {
  EXPECT_EQ(without_tags("[io] no file x; got y [file-access]"),
            "no file x; got y");
  EXPECT_EQ(without_tags("[io] no file x"), "no file x");
  EXPECT_EQ(without_tags("expected [1, 2]"), "expected [1, 2]");
  EXPECT_EQ(without_tags("RuntimeError: shape [2]"), "RuntimeError: shape [2]");
  EXPECT_EQ(without_tags(""), "");
  EXPECT_EQ(without_tags("[]"), "[]");
}

TEST(Wrap, BreaksAtSpacesAndIndents) {
  EXPECT_EQ(wrap("one two three", 13), "one two three");
  EXPECT_EQ(wrap("one two three", 12), "one two\nthree");
  EXPECT_EQ(wrap("- one two three", 9, 2), "- one two\n  three");
  EXPECT_EQ(wrap("  one two three", 9, 2), "  one two\n  three");
}

TEST(Wrap, CutsAWordThatIsLongerThanALine) {
  EXPECT_EQ(wrap("abcdefgh", 3), "abc\ndef\ngh");
  EXPECT_EQ(wrap("ab cdefgh", 4, 1), "ab\n cde\n fgh");
  EXPECT_EQ(wrap("ääää", 3), "äää\nä");
}

TEST(Wrap, KeepsSpacesWithinALine) {
  EXPECT_EQ(wrap("a   b cc", 6), "a   b\ncc");
}

}  // namespace
}  // namespace lockstep
