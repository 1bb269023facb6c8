#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/format.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/base/terminal.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/download/download_dataset.h"

namespace lockstep::cli {
namespace {

/// Shows the progress of a download on stdout: on a terminal in one line that
/// is redrawn, elsewhere in a line for each tenth of the file.
class DownloadProgress {
 public:
  /// Begins a file of this name, which comes from `url`.
  void begin(const std::string& name, const std::string& url) {
    end();
    fmt::print("{}\n", url);
    std::fflush(stdout);
    name_ = name;
    watch_ = Stopwatch();
    first_bytes_ = -1;
    tenths_ = 0;
  }

  void show(int64_t done_bytes, int64_t all_bytes) {
    if (first_bytes_ < 0) {
      first_bytes_ = done_bytes;
      tenths_ = static_cast<int>(10 * done_bytes / all_bytes);
    }
    const auto done = static_cast<double>(done_bytes);
    const auto all = static_cast<double>(all_bytes);
    const double part = done / all;
    if (!is_terminal_) {
      const int tenths = static_cast<int>(10 * part);
      if (tenths <= tenths_) return;
      tenths_ = tenths;
      fmt::print("  {} {} % of {}\n", name_, 10 * tenths, format_bytes(all));
      std::fflush(stdout);
      return;
    }
    constexpr double kBetween = 0.1;
    const bool is_whole = done_bytes == all_bytes;
    if (has_drawn_ && !is_whole && since_drawn_.seconds() < kBetween) return;
    since_drawn_ = Stopwatch();
    const double rate =
        (done - static_cast<double>(first_bytes_)) / (watch_.seconds() + 1e-6);
    std::string text = fmt::format("{:3.0f} % of {}, {}/s", 100 * part,
                                   format_bytes(all), format_bytes(rate));
    if (rate > 0 && !is_whole) {
      text += fmt::format(", {} left", format_duration((all - done) / rate));
    }
    const int room = terminal_width(STDOUT_FILENO) - 1 -
                     static_cast<int>(name_.size() + text.size()) - 7;
    const int width = std::clamp(room, 0, 30);
    const int filled = static_cast<int>(part * width);
    // Goes back to the beginning of the line, and clears the rest of the line
    // after the text.
    fmt::print("\r  {} [{:#<{}}{:{}}] {}\033[K", name_, "", filled, "",
               width - filled, text);
    std::fflush(stdout);
    has_drawn_ = true;
  }

  /// Prints a line of text without overwriting the drawn line.
  void say(const std::string& text) {
    end();
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  /// Ends the drawn line in its last state.
  void end() {
    if (has_drawn_) fmt::print("\n");
    has_drawn_ = false;
  }

 private:
  bool is_terminal_ = is_terminal(STDOUT_FILENO);
  std::string name_;
  Stopwatch watch_;        ///< since the file began
  Stopwatch since_drawn_;  ///< for terminals
  int64_t first_bytes_ = -1;
  int tenths_ = 0;
  bool has_drawn_ = false;
};

struct DataCommandFlags {
  std::string name;
  download::DownloadOptions options;
};

// Uses the same variables as curl and programs built on OpenSSL.
std::string certificates_of_environment() {
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    if (const auto value = env(name)) return *value;
  }
  return "";
}

void get(const DataCommandFlags& flags) {
  auto options = flags.options;
  if (options.fetch.ca_file.empty()) {
    options.fetch.ca_file = certificates_of_environment();
  }
  if (!options.mirror.empty() && !options.mirror.starts_with("https://")) {
    throw BadUsage("[usage] --mirror must begin with https://, got " +
                   options.mirror);
  }
  // libcurl would block on a pipe.
  if (!options.fetch.ca_file.empty()) {
    open_regular_file(options.fetch.ca_file);
  }
  DownloadProgress progress;
  options.begin = [&](const download::RemoteFile& file,
                      const std::string& url) {
    progress.begin(file.name, url);
  };
  options.fetch.progress = [&](int64_t done, int64_t all) {
    progress.show(done, all);
  };
  options.fetch.say = [&](const std::string& text) { progress.say(text); };
  options.fetch.stop = [] { return InterruptScope::signal() != 0; };
  const InterruptScope interrupts;
  try {
    // The option accepts only the names of datasets.
    const auto dataset = std::ranges::find(download::datasets(), flags.name,
                                           &download::RemoteDataset::name);
    const auto outcome = download::download_dataset(*dataset, options);
    progress.end();
    fmt::print("{} {} in {}\nlockstep train --data {} --data-dir {}\n",
               flags.name,
               outcome == download::Outcome::kWasThere
                   ? "is already downloaded and verified"
                   : "is downloaded and verified",
               options.dir, flags.name, options.dir);
  } catch (const Error& error) {
    progress.end();
    if (error.code() != ErrorCode::kInterrupted) throw;
    fmt::print(stderr, "{}\n", error.what());
    throw CLI::RuntimeError(kExitSignal + InterruptScope::signal());
  }
}

}  // namespace

void add_data(CLI::App& app) {
  auto* command =
      add_command(app, "data", "Download and verify an image dataset");
  auto flags = std::make_shared<DataCommandFlags>();
  std::vector<std::string> names;
  for (const auto& dataset : download::datasets()) {
    names.push_back(dataset.name);
  }
  add_choice(*command, "name", flags->name, names,
             fmt::format("{}", fmt::join(names, ", ")))
      ->required();
  command
      ->add_option("--dir", flags->options.dir,
                   "folder for its files; created if it doesn't exist")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--mirror", flags->options.mirror,
                   "https:// address of a folder with the same files")
      ->type_name("URL")
      ->default_str("the publisher's");
  command
      ->add_option("--ca-file", flags->options.fetch.ca_file,
                   "PEM file with the certificates to trust")
      ->type_name("PATH")
      ->default_str("$CURL_CA_BUNDLE, $SSL_CERT_FILE, or the system's");
  command->footer(
      "Every file is verified with its published checksum. After Ctrl-C, the "
      "same command continues where it stopped. A proxy is taken from "
      "$https_proxy.\n\n"
      "Example:\n"
      "  lockstep data mnist --dir data/mnist\n"
      "  lockstep train --data mnist --data-dir data/mnist --max-steps 200");
  command->callback([flags] { get(*flags); });
}

}  // namespace lockstep::cli
