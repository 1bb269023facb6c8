#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/data/download_progress.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/download/download_dataset.h"

namespace lockstep::cli {
namespace {

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
    const auto outcome =
        download::download_dataset(download::find_dataset(flags.name), options);
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
      add_command(app, "data", "Download a dataset of images, and check it");
  auto flags = std::make_shared<DataCommandFlags>();
  std::vector<std::string> names;
  for (const auto& dataset : download::datasets()) {
    names.push_back(dataset.name);
  }
  command
      ->add_option("name", flags->name,
                   fmt::format("{}", fmt::join(names, ", ")))
      ->type_name("NAME")
      ->required()
      ->check(one_of(names));
  command
      ->add_option("--dir", flags->options.dir,
                   "folder for its files; made if it is not there")
      ->type_name("DIR")
      ->required();
  command
      ->add_option("--mirror", flags->options.mirror,
                   "https:// address of a folder with the same files")
      ->type_name("URL")
      ->default_str("that of those who made it");
  command
      ->add_option("--ca-file", flags->options.fetch.ca_file,
                   "PEM file of the certificates to trust")
      ->type_name("PATH")
      ->default_str("$CURL_CA_BUNDLE, $SSL_CERT_FILE, or the system's");
  command->footer(
      "Every file is checked by its published checksum. Ctrl-C leaves what is\n"
      "there; the same command goes on. A proxy is taken from $https_proxy.\n\n"
      "Example:\n"
      "  lockstep data mnist --dir data/mnist\n"
      "  lockstep train --data mnist --data-dir data/mnist --max-steps 200");
  command->callback([flags] { get(*flags); });
}

}  // namespace lockstep::cli
