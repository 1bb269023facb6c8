#include "lockstep/train/record/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::training {
namespace {

ProgressText half_way() {
  return {.step = {.done = 50,
                   .total = 100,
                   .epoch = 2,
                   .metrics = {{"loss", 1.25}, {"accuracy", 0.5}},
                   .samples = 64},
          .samples_per_s = 1234.4,
          .seconds_left = 8,
          .step_s = 0.044,
          .total_s = 0.481};
}

size_t columns(const std::string& utf8) {
  size_t count = 0;
  for (const char byte : utf8) count += (byte & 0xC0) != 0x80;
  return count;
}

// The output of a Progress to a file.
class Output {
 public:
  Output() : file_(std::tmpfile()) {}
  ~Output() { std::fclose(file_); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  std::FILE* file() { return file_; }
  std::string text() {
    std::rewind(file_);
    std::string text;
    for (int byte; (byte = std::fgetc(file_)) != EOF;) {
      text += static_cast<char>(byte);
    }
    return text;
  }

 private:
  std::FILE* file_;
};

void take_steps(Progress& progress, int64_t count) {
  for (int64_t step = 1; step <= count; ++step) {
    progress.step({.done = step, .total = count, .samples = 8});
  }
}

TEST(Progress, LineHasLossAccuracySpeedAndTimeLeft) {
  EXPECT_EQ(render_line(half_way()),
            "step 50/100 | epoch 2 | loss 1.2500 | acc 50.00% | 1,234 "
            "samples/s | 8 s left");
}

TEST(Progress, BarIsAsWideAsTheTerminalAtMost) {
  for (const bool is_utf8 : {false, true}) {
    for (int width = 0; width < 140; ++width) {
      const std::string bar = render_bar(half_way(), width, is_utf8);
      EXPECT_LE(columns(bar), static_cast<size_t>(width)) << bar;
    }
  }
}

TEST(Progress, BarIsHalfFullHalfWay) {
  const std::string bar = render_bar(half_way(), 150, /*is_utf8=*/false);
  EXPECT_PRED2(contains, bar,
               "epoch 2 ===============............... 50/100 | Step: 44ms | "
               "Tot: 481ms | loss");
}

TEST(Progress, BarSaysStepAndTimeOnAUsualTerminal) {
  const std::string bar = render_bar(half_way(), 79, /*is_utf8=*/false);
  EXPECT_PRED2(contains, bar,
               " 50/100 | Step: 44ms | Tot: 481ms | loss 1.2500");
}

TEST(Progress, TimesHaveTwoUnitsAtMost) {
  EXPECT_EQ(short_duration(0), "0ms");
  EXPECT_EQ(short_duration(0.0436), "44ms");
  EXPECT_EQ(short_duration(6.679), "6s679ms");
  EXPECT_EQ(short_duration(1.047), "1s47ms");
  EXPECT_EQ(short_duration(125), "2m5s");
  EXPECT_EQ(short_duration(3 * 3600 + 61), "3h1m");
}

TEST(Progress, NarrowBarKeepsTheLossLongest) {
  const std::string bar = render_bar(half_way(), 42, /*is_utf8=*/false);
  EXPECT_PRED2(contains, bar, "loss 1.2500");
  EXPECT_FALSE(contains(bar, "samples/s")) << bar;
}

TEST(Progress, WritesALineEverySoManyStepsAndAtTheLast) {
  Output output;
  Progress progress(ProgressStyle::kLines, 10, output.file());
  take_steps(progress, 25);
  const std::string text = output.text();
  EXPECT_PRED2(contains, text, "step 10/25");
  EXPECT_PRED2(contains, text, "step 20/25");
  EXPECT_PRED2(contains, text, "step 25/25");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
}

TEST(Progress, RedrawsTheBarAtMostTenTimesASecond) {
  Output output;
  Progress progress(ProgressStyle::kBar, 1, output.file());
  take_steps(progress, 1000);
  const std::string text = output.text();
  // The first and the last step, and a few if the machine is slow.
  size_t drawn = 0;
  for (size_t at = 0; (at = text.find("epoch 0", at)) != text.npos; ++at) {
    ++drawn;
  }
  EXPECT_GE(drawn, 2u);
  EXPECT_LE(drawn, 20u);
  EXPECT_PRED2(contains, text, "1000/1000");
}

TEST(Progress, ErasesTheBarBeforeALineAndAtTheEnd) {
  Output output;
  {
    Progress progress(ProgressStyle::kBar, 1, output.file());
    take_steps(progress, 1);
    progress.line("a line");
    take_steps(progress, 1);
  }
  const std::string text = output.text();
  EXPECT_PRED2(contains, text, "\r\x1b[2Ka line\n");
  EXPECT_EQ(text.substr(text.size() - 5), "\r\x1b[2K");
}

// The evaluation of a large model takes minutes.
TEST(Progress, ShowsAnEvaluationFromItsBeginning) {
  Output output;
  Progress progress(ProgressStyle::kBar, 1, output.file());
  progress.evaluation(0, 40);
  EXPECT_PRED2(contains, output.text(), "evaluation ");
  EXPECT_PRED2(contains, output.text(), " 0/40");
  EXPECT_EQ(render_evaluation(10, 40, 29.6, 40, false),
            "evaluation ==......... 10/40 | 30 s left");
  EXPECT_EQ(render_evaluation(10, 40, 29.6, 12, false), "evaluation 1");
}

TEST(Progress, PrintsNoLineForAShortEvaluation) {
  Output output;
  Progress progress(ProgressStyle::kLines, 1, output.file());
  for (int64_t done = 0; done < 40; ++done) progress.evaluation(done, 40);
  EXPECT_EQ(output.text(), "");
}

TEST(Progress, NoneWritesNothing) {
  Output output;
  Progress progress(ProgressStyle::kNone, 1, output.file());
  take_steps(progress, 3);
  progress.line("a line");
  EXPECT_EQ(output.text(), "");
}

TEST(Progress, UsesLinesWhereThereIsNoTerminal) {
  Output output;
  EXPECT_EQ(default_progress_style(output.file()), ProgressStyle::kLines);
}

// As a rank does whose launcher passes its output to a terminal.
TEST(Progress, UsesABarWhereItIsToldOfATerminal) {
  Output output;
  ::setenv(kTerminalColumns, "60", 1);
  EXPECT_EQ(terminal_columns(output.file()), 60);
  EXPECT_EQ(default_progress_style(output.file()), ProgressStyle::kBar);
  {
    Progress progress(ProgressStyle::kBar, 1, output.file());
    take_steps(progress, 1);
  }
  for (const char* no_number : {"", "wide", "60x", "-3", "0"}) {
    ::setenv(kTerminalColumns, no_number, 1);
    EXPECT_EQ(default_progress_style(output.file()), ProgressStyle::kLines);
  }
  ::unsetenv(kTerminalColumns);
  std::istringstream parts(output.text());
  std::string bar;
  std::getline(parts, bar, '\r');
  EXPECT_EQ(columns(bar), 59u) << bar;
}

}  // namespace
}  // namespace lockstep::training
