// The README shows what is there.

#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

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

// Links to files of this repository, from the README and the practicals.
TEST(Readme, LinksToFilesThatExist) {
  const std::regex link(R"(\]\(([^)#:]+)(#[^)]*)?\))");
  for (const std::string path :
       {"README.md", "docs/practical-5.md", "docs/launcher.md"}) {
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
