// Pages of real runs, in a real browser.
// Tier: nightly, by case. A tool, in a real browser.
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/process.h"
#include "tests/checkpoint/python.h"
#include "tests/cli/run_folders.h"

namespace lockstep::report_page_test {
namespace {

using namespace run_folders;  // NOLINT

CommandResult look_at(const std::vector<std::string>& pages) {
  Command command;
  command.arguments = {kSystemPython, LOCKSTEP_SOURCE_DIR
                       "/tests/tools/page/browser/check_page.py"};
  command.arguments.insert(command.arguments.end(), pages.begin(), pages.end());
  command.deadline_s = 200;
  return run_command(command);
}

bool has_no_browser(const CommandResult& result) {
  return result.end == CommandResult::End::kExited && result.exit_code == 77;
}

TEST(ReportPage, IsReadableAtTwoWidthsInLightAndDark) {
  const TemporaryFolder folder;
  std::vector<std::string> words{"compare", "--runs"};
  for (const char* strategy : {"single", "dp-classic", "dp", "ddp"}) {
    train_into(folder.path(strategy), strategy);
    words.push_back(folder.path(strategy));
  }
  words.insert(words.end(), {"--html", folder.path("report.html")});
  const Ended report = run_lockstep(words);
  ASSERT_EQ(report.code, 0) << report.err;
  const Ended compare = run_lockstep(
      {"compare", "--model", "mlp", "--batch-size", "8", "--steps", "5",
       "--warmup", "1", "--rounds", "2", "--devices", "2xcpu", "--strategies",
       "single,dp,ddp", "--html", folder.path("compare.html")});
  ASSERT_EQ(compare.code, 0) << compare.err;
  const auto result =
      look_at({folder.path("report.html"), folder.path("compare.html")});
  if (has_no_browser(result)) GTEST_SKIP() << result.out;
  EXPECT_TRUE(result.ok()) << result.out << result.err;
}

// Long names, a device that is much too full, and losses that jump.
TEST(ReportPage, StaysReadableWithWhatIsHostile) {
  const TemporaryFolder folder;
  train_into(folder.path("run"), "dp");
  auto run = read_json(folder.path("run/run.json"));
  const std::string name = "<script>alert(1)</script>" + std::string(300, 'w');
  run["strategy"] = name;
  run["model"] = name;
  run["devices"][0]["name"] = name;
  run["devices"][0]["memory_peak_bytes"] = INT64_MAX;
  run["command"] = {"lockstep", name, std::string(2000, 'x')};
  run["losses"] = {1, 1e300, -1e300, 2, 3};
  run["time_line"][0]["lanes"][0] = name;
  write_json(folder.path("run.json"), run);
  const Ended report =
      run_lockstep({"compare", "--runs", folder.path("run.json"), "--html",
                    folder.path("page.html")});
  ASSERT_EQ(report.code, 0) << report.err;
  const auto result = look_at({folder.path("page.html")});
  if (has_no_browser(result)) GTEST_SKIP() << result.out;
  EXPECT_TRUE(result.ok()) << result.out << result.err;
}

TEST(ReportPage, IsLookedAtByACheckThatCanFail) {
  const TemporaryFolder folder;
  train_into(folder.path("run"), "single");
  const Ended report = run_lockstep({"compare", "--runs", folder.path("run"),
                                     "--html", folder.path("page.html")});
  ASSERT_EQ(report.code, 0) << report.err;
  const std::string page = content_of(folder.path("page.html"));
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string text = page;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    return text;
  };
  const std::vector<std::pair<std::string, std::string>> cases{
      {broken("</main>", "<p style='width:2000px'>wide</p></main>"),
       "pixels wide"},
      {broken("</main>", "<img src='x.png'></main>"), "console"},
      {broken("svg text { fill: var(--ink); font: 13px",
              "svg text { fill: var(--ink); font: 9px"),
       "letters of 9"},
      {broken("--muted: #59636e", "--muted: #b0b0b0"), "contrast"},
      {broken("<caption>Time</caption>", ""), "has no caption"},
      {broken("scope=\"row\"", ""), "has no scope"},
      {broken("tabindex=\"0\"", ""), "Tab stop"},
      {broken(".for-narrow { display: none;", ".for-narrow {"),
       "shows 2 charts"},
      {broken("</svg>",
              "<text x='0' y='20'>over</text>"
              "<text x='3' y='20'>this</text></svg>"),
       "is on"},
  };
  for (const auto& [text, finding] : cases) {
    std::ofstream(folder.path("broken.html")) << text;
    const auto result = look_at({folder.path("broken.html")});
    if (has_no_browser(result)) GTEST_SKIP() << result.out;
    EXPECT_EQ(result.exit_code, 1) << finding;
    EXPECT_NE(result.out.find(finding), std::string::npos) << finding << ":\n"
                                                           << result.out;
  }
}

}  // namespace
}  // namespace lockstep::report_page_test
