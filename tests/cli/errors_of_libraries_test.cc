// Errors that other libraries throw are told in our form.
#include <filesystem>
#include <functional>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/json.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

/// Returns what a program prints that ends with the exception of `run`.
std::string printed(const std::function<int()>& run) {
  char name[] = "lockstep";
  char* arguments[] = {name, nullptr};
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_and_report(1, arguments, run), kExitFailed);
  return testing::internal::GetCapturedStderr();
}

TEST(ErrorsOfLibraries, NameNoLibrary) {
  const auto denied = std::make_error_code(std::errc::permission_denied);
  EXPECT_EQ(printed([&]() -> int {
              throw std::filesystem::filesystem_error("cannot open", "a/b",
                                                      denied);
            }),
            "[io] can't use a/b: Permission denied; check the permissions of "
            "the file and its folder [file-access]\n");
  EXPECT_EQ(printed([&]() -> int { throw std::system_error(denied, "std::"); }),
            "Permission denied\n");
  EXPECT_EQ(printed([]() -> int {
              return parse_json("1").at("x");
            }).find("json.exception"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::cli
