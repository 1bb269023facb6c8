// The last of several values of an option counts, as with argparse.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/config_file.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

TEST(RepeatedOptions, HaveTheLastValue) {
  CLI::App app;
  set_up(app);
  CLI::App* const command = add_command(app, "train", "");
  std::string model, out_dir;
  std::optional<double> lr;
  double momentum = 0;
  int steps = 0;
  std::vector<std::string> files;
  add_options(
      *command,
      {{.name = "--model",
        .value = &model,
        .help = "",
        .words = {"mlp", "resnet18"}},
       {.name = "--out-dir", .value = &out_dir, .help = ""},
       {.name = "--lr", .value = &lr, .help = ""},
       {.name = "--momentum", .value = &momentum, .help = ""},
       {.name = "--steps", .value = &steps, .help = ""},
       {.name = "--input", .value = &files, .help = "", .type = "FILE ..."}});
  std::vector<std::string> words{
      "train",   "--model", "resnet18",   "--lr", "1",          "--out-dir",
      "a",       "--steps", "3",          "--lr", "2",          "--input",
      "x",       "y",       "--momentum", "0.5",  "--model",    "mlp",
      "--steps", "4",       "--out-dir",  "b",    "--momentum", "0.9"};
  std::reverse(words.begin(), words.end());
  app.parse(words);
  EXPECT_EQ(model, "mlp");
  EXPECT_EQ(out_dir, "b");
  EXPECT_EQ(lr, 2);
  EXPECT_EQ(momentum, 0.9);
  EXPECT_EQ(steps, 4);
  EXPECT_EQ(files, (std::vector<std::string>{"x", "y"}));
  const auto config = nlohmann::json::parse(config_of(*command));
  EXPECT_EQ(config.at("model"), "mlp");
  EXPECT_EQ(config.at("steps"), 4);
}

}  // namespace
}  // namespace lockstep::cli
