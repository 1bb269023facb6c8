// Feeds text to words_of_config() as a config file. The resulting words are
// options of the command, which accepts them or refuses their values.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/config_file.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  set_log_level(LogLevel::kError);
  CLI::App app;
  app.name("train");
  std::string model, milestones;
  int64_t batch_size = 0;
  double lr = 0;
  bool quiet = false;
  app.add_option("--model", model);
  app.add_option("--milestones", milestones);
  app.add_option("--batch-size", batch_size);
  app.add_option("--lr", lr);
  app.add_flag("--quiet", quiet);
  cli::add_config_option(app);
  try {
    auto words = cli::words_of_config(
        app, "c.json", {reinterpret_cast<const char*>(data), size}, {});
    for (const auto& word : words) {
      fuzz::require(word.starts_with("--"), "a word is no option");
      fuzz::require(
          !word.starts_with("--config") && !word.starts_with("--help"),
          "a file names a file");
    }
    std::reverse(words.begin(), words.end());
    app.parse(words);
  } catch (const CLI::ParseError&) {
    // If the option does not accept a value, the error is the same as for the
    // command line.
  } catch (const cli::BadUsage& error) {
    fuzz::require_plain_message(error);
  } catch (const Error& error) {
    fuzz::require_plain_message(error);
  }
  return 0;
}
