#include "lockstep/base/table.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Sets the locale's variables for a test, and puts them back.
class TableTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* before = std::getenv("LC_ALL");
    has_before_ = before != nullptr;
    if (has_before_) before_ = before;
  }
  void TearDown() override {
    if (has_before_) {
      ::setenv("LC_ALL", before_.c_str(), 1);
    } else {
      ::unsetenv("LC_ALL");
    }
  }
  static void use_utf8() { ::setenv("LC_ALL", "C.UTF-8", 1); }
  static void use_ascii() { ::setenv("LC_ALL", "C", 1); }

 private:
  bool has_before_ = false;
  std::string before_;
};

std::vector<std::string> lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string line; std::getline(stream, line);) result.push_back(line);
  return result;
}

TEST_F(TableTest, IsDrawnAsWrittenByHand) {
  use_utf8();
  Table table({"Set up", "Step"});
  table.add_row({"single", "1.5"});
  table.add_rule();
  table.add_row({"dp", "10"});
  EXPECT_EQ(table.render(),
            "┌────────┬──────┐\n"
            "│ Set up │ Step │\n"
            "├────────┼──────┤\n"
            "│ single │  1.5 │\n"
            "├────────┼──────┤\n"
            "│ dp     │   10 │\n"
            "└────────┴──────┘\n");
}

TEST_F(TableTest, IsAsciiInALocaleWithoutUtf8) {
  use_ascii();
  Table table({"a", "b"});
  table.add_row({"1", "2"});
  for (const char letter : table.render()) {
    EXPECT_LT(static_cast<unsigned char>(letter), 0x80);
  }
}

TEST_F(TableTest, HasLinesOfOneWidthWhateverItsCellsHold) {
  use_utf8();
  Table table({"größe", "█▌"});
  table.add_row({"x", "▏"});
  table.add_row({"much longer than the header", ""});
  const auto drawn = lines(table.render());
  for (const auto& line : drawn) {
    EXPECT_EQ(display_width(line), display_width(drawn.front())) << line;
  }
}

TEST_F(TableTest, AlignsAsItIsTold) {
  use_ascii();
  Table table({"head", "head"});
  table.align({Align::kRight, Align::kLeft});
  table.add_row({"a", "b"});
  EXPECT_NE(table.render().find("|    a | b    |"), std::string::npos)
      << table.render();
}

TEST_F(TableTest, FillsMissingCellsAndRefusesSurplusOnes) {
  use_ascii();
  Table table({"a", "b"});
  table.add_row({"1"});
  EXPECT_NE(table.render().find("| 1 |   |"), std::string::npos);
  EXPECT_THROW(table.add_row({"1", "2", "3"}), InvalidArgument);
}

TEST_F(TableTest, DrawsABarInProportion) {
  use_utf8();
  EXPECT_EQ(bar(0.5, 4), "██");
  EXPECT_EQ(bar(0.0, 4), "");
  EXPECT_EQ(bar(1.0, 3), "███");
  EXPECT_EQ(bar(7.0, 3), "███");
  EXPECT_EQ(bar(0.125, 1), "▏");
  use_ascii();
  EXPECT_EQ(bar(0.5, 4), "##");
}

}  // namespace
}  // namespace lockstep
