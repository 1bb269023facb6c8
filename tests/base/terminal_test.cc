#include "lockstep/base/terminal.h"

#include <cmath>
#include <fcntl.h>
#include <limits>
#include <optional>
#include <stdlib.h>
#include <string>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(FormatBytes, UsesBinaryUnits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1.2 * (1 << 30)), "1.2 GiB");
  EXPECT_EQ(format_bytes(-3 * 1024), "-3.0 KiB");
}

TEST(FormatBytes, NeverPrints1024OfAUnit) {
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.0 MiB");
}

TEST(FormatDuration, PicksTheUnit) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(2.5e-8), "25.0 ns");
  EXPECT_EQ(format_duration(4.2e-6), "4.20 us");
  EXPECT_EQ(format_duration(0.00123), "1.23 ms");
  EXPECT_EQ(format_duration(0.0234), "23.4 ms");
  EXPECT_EQ(format_duration(0.5), "500 ms");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(125), "2 min 5 s");
  EXPECT_EQ(format_duration(3 * 3600 + 61), "3 h 1 min");
  EXPECT_EQ(format_duration(2 * 86400 + 3600), "2 d 1 h");
}

TEST(FormatDuration, CarriesWhenItRounds) {
  EXPECT_EQ(format_duration(0.9999), "1.00 s");
  EXPECT_EQ(format_duration(9.999), "10.0 s");
  EXPECT_EQ(format_duration(59.99), "1 min 0 s");
  EXPECT_EQ(format_duration(3599.9), "1 h 0 min");
}

TEST(FormatDuration, TakesWhatIsNoNumber) {
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::quiet_NaN()), "?");
  EXPECT_EQ(format_duration(-0.5), "-500 ms");
  EXPECT_FALSE(format_duration(1e300).empty());
}

TEST(FormatCount, GroupsThousands) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1,000");
  EXPECT_EQ(format_count(12345678), "12,345,678");
  EXPECT_EQ(format_count(-123456), "-123,456");
  EXPECT_EQ(format_count(std::numeric_limits<long long>::min()),
            "-9,223,372,036,854,775,808");
}

TEST(FormatDurations, SaysTheUnitOnce) {
  EXPECT_EQ(format_durations(0.0012, 0.0014), "1.20-1.40 ms");
  EXPECT_EQ(format_durations(0.0009, 0.0014), "900 us - 1.40 ms");
  EXPECT_EQ(format_durations(125, 130), "2 min 5 s - 2 min 10 s");
}

// A descriptor that is not a terminal, and the COLUMNS of a test.
class NoTerminal : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(::pipe(ends_), 0);
    if (const char* value = ::getenv("COLUMNS")) before_ = value;
    ::unsetenv("COLUMNS");
  }
  void TearDown() override {
    ::close(ends_[0]);
    ::close(ends_[1]);
    if (before_) {
      ::setenv("COLUMNS", before_->c_str(), 1);
    } else {
      ::unsetenv("COLUMNS");
    }
  }
  int width_with(const char* columns) const {
    ::setenv("COLUMNS", columns, 1);
    return terminal_width(ends_[0]);
  }

  int ends_[2] = {-1, -1};

 private:
  std::optional<std::string> before_;
};

TEST_F(NoTerminal, Has80Columns) {
  EXPECT_FALSE(is_terminal(ends_[0]));
  EXPECT_EQ(terminal_width(ends_[0]), 80);
}

TEST_F(NoTerminal, HasTheColumnsOfTheEnvironment) {
  EXPECT_EQ(width_with("132"), 132);
  EXPECT_EQ(width_with("60"), 60);
  EXPECT_EQ(width_with("3"), kLeastColumns);
  for (const char* wrong : {"", "0", "-5", "wide", "80x", "99999999999"}) {
    EXPECT_EQ(width_with(wrong), 80) << wrong;
  }
}

TEST(TerminalWidth, IsThatOfTheTerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "this system gives out no terminals";
  ::grantpt(terminal);
  ::unlockpt(terminal);
  struct winsize size {};
  size.ws_col = 132;
  ASSERT_EQ(::ioctl(terminal, TIOCSWINSZ, &size), 0);
  EXPECT_TRUE(is_terminal(terminal));
  EXPECT_EQ(terminal_width(terminal), 132);
  ::close(terminal);
}

class PseudoTerminal : public testing::Test {
 protected:
  void SetUp() override {
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal_ < 0) GTEST_SKIP() << "this system gives out no terminals";
    ::grantpt(terminal_);
    ::unlockpt(terminal_);
  }
  void TearDown() override {
    if (terminal_ >= 0) ::close(terminal_);
  }
  int terminal_ = -1;
};

TEST_F(PseudoTerminal, HasItsUnfinishedLineErasedOnce) {
  const std::string code = "\r\x1b[2K";
  EXPECT_EQ(erase_unfinished_line(terminal_), "");
  note_unfinished_line();
  const int file = ::open("/dev/null", O_WRONLY);
  EXPECT_EQ(erase_unfinished_line(file), "");
  ::close(file);
  EXPECT_EQ(erase_unfinished_line(terminal_), code);
  EXPECT_EQ(erase_unfinished_line(terminal_), "");
}

// mpirun gives its ranks one, and may itself write to a file.
TEST_F(PseudoTerminal, IsNoTerminalForARankOfOpenMpi) {
  ::setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  EXPECT_FALSE(is_terminal(terminal_));
  EXPECT_FALSE(wants_colour(terminal_));
  ::unsetenv("OMPI_COMM_WORLD_RANK");
  EXPECT_TRUE(is_terminal(terminal_));
}

TEST(Counted, HasTheWordInTheFormThatTheNumberNeeds) {
  EXPECT_EQ(counted(1, "chunk"), "1 chunk");
  EXPECT_EQ(counted(0, "chunk"), "0 chunks");
  EXPECT_EQ(counted(2000, "step"), "2,000 steps");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(3, "batch", "batches"), "3 batches");
}

TEST(FormatNumber, CanBeReadWhateverItsSize) {
  EXPECT_EQ(format_number(2.33166), "2.3317");
  EXPECT_EQ(format_number(0), "0.0000");
  EXPECT_EQ(format_number(-12345.5), "-12345.5000");
  EXPECT_EQ(format_number(41394496257835589632.0), "4.139e+19");
  EXPECT_EQ(format_number(0.1 * 0.1 * 0.1 * 0.1), "0.0001");
  EXPECT_EQ(format_number(3e-6), "3.000e-06");
  EXPECT_EQ(format_number(std::nan("")), "nan");
}

class Locale : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
      const char* value = ::getenv(name);
      before_.emplace_back(
          name, value ? std::optional<std::string>(value) : std::nullopt);
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value) {
        ::setenv(name.c_str(), value->c_str(), 1);
      } else {
        ::unsetenv(name.c_str());
      }
    }
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST_F(Locale, IsTakenFromTheFirstVariableThatIsSet) {
  EXPECT_FALSE(locale_is_utf8());
  ::setenv("LANG", "en_GB.UTF-8", 1);
  EXPECT_TRUE(locale_is_utf8());
  ::setenv("LC_CTYPE", "", 1);
  EXPECT_TRUE(locale_is_utf8());
  ::setenv("LC_ALL", "C", 1);
  EXPECT_FALSE(locale_is_utf8());
  ::setenv("LC_ALL", "C.utf8", 1);
  EXPECT_TRUE(locale_is_utf8());
}

}  // namespace
}  // namespace lockstep
