#include <cstdlib>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/table.h"
#include "lockstep/tools/charts/comparison_text.h"
#include "tests/tools/canned_time_line.h"
#include "tests/tools/texts.h"

namespace lockstep::tools {
namespace {

TimeLine line() { return time_lines(canned_ddp()).at(0); }

/// Sets LC_ALL while this object exists.
class Locale {
 public:
  explicit Locale(const char* name) {
    if (const char* value = std::getenv("LC_ALL")) before_ = value;
    ::setenv("LC_ALL", name, 1);
  }
  ~Locale() {
    if (before_) {
      ::setenv("LC_ALL", before_->c_str(), 1);
    } else {
      ::unsetenv("LC_ALL");
    }
  }

 private:
  std::optional<std::string> before_;
};

TEST(TimeLineText, DrawsBlocksInTheirPlaces) {
  const Locale locale("C");
  // There are 40 columns for 40 ms.
  const auto lines = lines_of(to_text(line(), 18 + 3 + 40, Colour::kNever));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0],
            "rank 0  cpu:0      |ffffffffffBBBBBBBBBBBBBBB       "
            "uuuuuuuu|");
  EXPECT_EQ(lines[1],
            "rank 0  all-reduce |                         R....RR"
            "        |");
  EXPECT_EQ(lines[2],
            "rank 1  cpu:0      |ffffffffffBBBBBBBBBBBBBBBBBBBB  "
            "uuuuuuuu|");
  EXPECT_EQ(lines[4], "                    0 ms      10        20        30");
  EXPECT_EQ(lines[5],
            "                    f forward  B backward  R all-reduce");
}

TEST(TimeLineText, UsesBlocksWhereTheTerminalHasThem) {
  const Locale locale("C.UTF-8");
  const std::string text = to_text(line(), 100, Colour::kNever);
  EXPECT_PRED2(contains, text, "░░█");
  EXPECT_PRED2(contains, text, "▞ all-reduce");
  EXPECT_FALSE(contains(text, "\033"));
  EXPECT_PRED2(contains, to_text(line(), 100, Colour::kAlways), "\033[34m█");
}

TEST(TimeLineText, FitsItsWidth) {
  for (const char* name : {"C", "C.UTF-8"}) {
    const Locale locale(name);
    for (const int width : {50, 80, 133, 200}) {
      const auto lines = lines_of(to_text(line(), width, Colour::kNever));
      for (const auto& one : lines) {
        EXPECT_LE(display_width(one), static_cast<size_t>(width)) << one;
      }
      EXPECT_EQ(display_width(lines[0]), static_cast<size_t>(width));
    }
  }
}

TEST(TimeLineText, ShowsWhatIsShorterThanAColumn) {
  const Locale locale("C");
  ComparedRun run{.engine = kLockstep};
  run.report.strategy = "ddp";
  run.time_line = {canned_trace(0, 25)};
  auto& spans = run.time_line[0].log.spans;
  spans.push_back(
      canned_span(2, "outcome", TraceCategory::kCommunication, 35, 35));
  spans.back().end_ns += 1000;
  const auto lines =
      lines_of(to_text(time_line_of(run), 18 + 3 + 40, Colour::kNever));
  EXPECT_PRED2(contains, lines[1], "R....RR   R    |");
}

}  // namespace
}  // namespace lockstep::tools
