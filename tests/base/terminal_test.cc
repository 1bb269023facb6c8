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
  EXPECT_EQ(width_with("3"), kMinColumns);
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
