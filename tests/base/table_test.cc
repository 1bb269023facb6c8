#include "lockstep/base/table.h"

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Sets the locale's variables for a test, and restores them.
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

Table three_columns() {
  Table table({"Set up", "Step time", "Speed-up"});
  table.add_row({"single", "30.0 ms", "1.00x"});
  table.add_row({"dp", "20.0 ms", "1.50x"});
  return table;
}

TEST_F(TableTest, IsLeftWholeWhereItFits) {
  use_ascii();
  const Table table = three_columns();
  const size_t width = display_width(lines(table.render()).front());
  EXPECT_EQ(table.render(width), table.render());
  EXPECT_NE(table.render(width - 1), table.render());
}

TEST_F(TableTest, FoldsIntoTablesThatRepeatTheNames) {
  use_ascii();
  EXPECT_EQ(three_columns().render(25),
            "+--------+-----------+\n"
            "| Set up | Step time |\n"
            "+--------+-----------+\n"
            "| single |   30.0 ms |\n"
            "| dp     |   20.0 ms |\n"
            "+--------+-----------+\n"
            "+--------+----------+\n"
            "| Set up | Speed-up |\n"
            "+--------+----------+\n"
            "| single |    1.00x |\n"
            "| dp     |    1.50x |\n"
            "+--------+----------+\n");
}

TEST_F(TableTest, BecomesAListWhereTwoColumnsHaveNoRoom) {
  use_ascii();
  EXPECT_EQ(three_columns().render(20),
            "single\n"
            "  Step time\n"
            "    30.0 ms\n"
            "  Speed-up\n"
            "    1.00x\n"
            "dp\n"
            "  Step time\n"
            "    20.0 ms\n"
            "  Speed-up\n"
            "    1.50x\n");
  Table table({"Set up", "Device", "Note"});
  table.name_rows_by(2);
  table.add_row({"dp", "cpu:0", "a note that is longer than the terminal"});
  table.add_row({"", "cpu:1", "short"});
  EXPECT_EQ(table.render(30),
            "dp, cpu:0\n"
            "  Note  a note that is longer\n"
            "        than the terminal\n"
            "dp, cpu:1\n"
            "  Note  short\n");
}

TEST_F(TableTest, IsNeverWiderThanItMayBe) {
  use_utf8();
  Table table({"größe", "a", "a much longer header", "c", "█▌"});
  table.add_row({"ä", std::string(70, 'x'), "2", "3", "4"});
  table.add_rule();
  table.add_row({"a name of several words", "1", "", "3", "▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏▏"});
  for (size_t width = 10; width < 160; ++width) {
    for (const auto& line : lines(table.render(width))) {
      EXPECT_LE(display_width(line), width) << line;
    }
  }
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
