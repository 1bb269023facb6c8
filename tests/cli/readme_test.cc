// Checks that the README shows what exists.

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"
#include "tests/cli/program.h"

namespace lockstep {
namespace {

const std::string kRoot = LOCKSTEP_SOURCE_DIR;

std::string read(const std::string& path) {
  std::ifstream file(kRoot + "/" + path);
  EXPECT_TRUE(file.good()) << path;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(Readme, QuotesTheTwentyLinesAsTheyAre) {
  const std::string quote =
      "```cpp\n" + read("examples/twenty_lines/main.cc") + "```\n";
  EXPECT_NE(read("README.md").find(quote), std::string::npos)
      << "the C++ program in README.md is not that of examples/twenty_lines";
}

TEST(Readme, GuideToTheLauncherQuotesTheRecipeForSlurm) {
  const std::string recipe = read("examples/slurm/train.sbatch");
  const auto body = recipe.find("#SBATCH");
  ASSERT_NE(body, std::string::npos);
  EXPECT_NE(read("docs/launcher.md").find(recipe.substr(body)),
            std::string::npos);
}

// Returns the commands in code blocks. Continued lines are joined.
std::vector<std::string> commands_in(std::string text) {
  text = std::regex_replace(text, std::regex(R"(\\\n\s*)"), "");
  const std::regex command(R"(\n +lockstep ([a-z][^\n]*))");
  std::vector<std::string> found;
  for (std::sregex_iterator match(text.begin(), text.end(), command), end;
       match != end; ++match) {
    const std::string line = (*match)[1].str();
    // The program that `run` starts has its own options.
    found.push_back(line.substr(0, line.find(" -- ")));
  }
  return found;
}

TEST(Readme, ShowsOptionsThatExist) {
  std::map<std::string, std::string> help;
  int options = 0;
  for (const auto& path : {"README.md", "docs/commands.md", "docs/launcher.md",
                           "docs/checkpoints.md", "docs/collectives.md",
                           "docs/language-models.md", "docs/text-data.md"}) {
    for (const auto& line : commands_in(read(path))) {
      std::istringstream words(line);
      std::string command, word;
      words >> command;
      if (!help.contains(command)) {
        help[command] = run_lockstep({"help", command}).out;
      }
      EXPECT_PRED2(contains, help[command], "Usage: lockstep " + command)
          << path;
      while (words >> word) {
        if (word == "-m" || word.ends_with(".py")) break;  // a program
        if (!word.starts_with("--")) continue;
        EXPECT_PRED2(contains, help[command], word.substr(0, word.find('=')))
            << path << ": " << line;
        ++options;
      }
    }
  }
  EXPECT_GT(options, 40);
}

// Links to files of this repository, from the README and the practicals.
TEST(Readme, LinksToFilesThatExist) {
  const std::regex link(R"(\]\(([^)#:]+)(#[^)]*)?\))");
  for (const std::string path :
       {"README.md", "CONTRIBUTING.md", "docs/commands.md", "docs/install.md",
        "docs/launcher.md", "docs/practicals/README.md",
        "docs/practicals/1-single-device.md",
        "docs/practicals/2-data-parallel.md",
        "docs/practicals/3-distributed-data-parallel.md",
        "docs/practicals/4-resnet34-cifar10.md",
        "docs/practicals/5-language-model.md", "docs/practicals/6-faults.md",
        "docs/practicals/steps.md"}) {
    const std::string text = read(path);
    const auto folder = std::filesystem::path(kRoot + "/" + path).parent_path();
    int links = 0;
    for (std::sregex_iterator match(text.begin(), text.end(), link), end;
         match != end; ++match, ++links) {
      const auto target = folder / (*match)[1].str();
      EXPECT_TRUE(std::filesystem::exists(target)) << path << ": " << target;
    }
    EXPECT_GT(links, 0) << path;
  }
}

}  // namespace
}  // namespace lockstep
