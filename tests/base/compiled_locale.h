#pragma once

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep {

/// A locale that is compiled into a temporary folder, because the system may
/// have only the C locale.
class CompiledLocale {
 public:
  /// `source` is a file in /usr/share/i18n/locales, such as "de_DE".
  explicit CompiledLocale(const std::string& source)
      : name_(source + ".UTF-8") {
    const std::string command =
        "localedef -i " + source + " -f UTF-8 " + folder_.path(name_);
    // 1 means that there were warnings.
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) <= 1)
        << command << ": install the package `locales`";
  }
  const std::string& name() const { return name_; }
  /// Returns the value of LOCPATH, where the C library looks for locales.
  std::string folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  std::string name_;
};

}  // namespace lockstep
