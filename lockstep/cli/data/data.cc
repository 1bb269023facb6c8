#include <algorithm>
#include <fcntl.h>
#include <filesystem>
#include <memory>
#include <set>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/atomic_folder.h"
#include "lockstep/base/checksum.h"
#include "lockstep/base/child_process.h"
#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_lock.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/output.h"
#include "lockstep/base/process.h"
#include "lockstep/base/terminal.h"
#include "lockstep/base/text.h"
#include "lockstep/cli/data/catalog.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/commands.h"
#include "lockstep/cli/start/program.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int kTries = 5;  // in a row that bring less than 1 % of the rest
// Exit codes of curl after which another try would not help: the protocol, the
// URL, the disk, too many redirections, and the certificates.
constexpr int kFinalExits[] = {1, 3, 23, 47, 60, 77};
constexpr int kCantContinue = 33;

int64_t size_of(const fs::path& path) {
  return fs::exists(path) ? static_cast<int64_t>(fs::file_size(path)) : 0;
}

std::string sha256_of(const fs::path& path) {
  Sha256 sha256;
  read_in_parts(path, [&](auto bytes) { sha256.add(bytes); });
  return sha256.hex();
}

// Returns whether there is a file `path`. Refuses one with other bytes.
bool has_file(const fs::path& path, const std::string& sha256) {
  if (!fs::exists(fs::symlink_status(path))) return false;
  const std::string got = sha256_of(path);
  if (got == sha256) return true;
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = path.string() + " exists, and is a different file",
                   .expected = "SHA-256 " + sha256,
                   .got = got,
                   .fix = "move it away, or name another --dir"});
}

bool is_interrupted() { return InterruptScope::signal() != 0; }

// Runs a program. Ends it if a signal arrives, or if `part` is too long.
CommandResult run_program(const Words& words, bool shows_err = false,
                          const fs::path& part = {}, int64_t max_bytes = 0) {
  Command command{.arguments = words, .deadline_s = 1e9, .stop = [&] {
                    return is_interrupted() || size_of(part) > max_bytes;
                  }};
  command.shows_err = shows_err;
  const auto result = run_command(command);
  if (!is_interrupted()) return result;
  throw DataError({.code = ErrorCode::kInterrupted,
                   .what = "the download was interrupted",
                   .fix = "the same command continues it"});
}

Words curl_words(const std::string& url, const std::string& part) {
  return {"curl",       "--fail",
          "--location", "--proto",
          "=https",     "--connect-timeout",
          "20",         "--speed-limit",
          "1024",       "--speed-time",
          "30",         "--continue-at",
          "-",          "--output",
          part,         url};
}

// GNU tar and bsdtar keep to the folder unless they get --absolute-names (-P):
// they refuse "../a", make "/a" relative and write nothing through links.
Words tar_words(const RemoteFile& file, const fs::path& dir,
                const std::string& folder) {
  Words words{"tar",
              "--extract",
              "--gzip",
              "--no-same-owner",
              "--no-same-permissions",
              "--strip-components=1",
              "--directory",
              folder,
              "--file",
              dir / file.name};
  words.insert(words.end(), file.members.begin(), file.members.end());
  return words;
}

// Downloads `url` to `path`, or continues an earlier download.
void download(const std::string& url, const RemoteFile& file,
              const fs::path& path) {
  const fs::path part = path.string() + ".part";
  const bool shows = is_terminal(STDERR_FILENO);
  Words words = curl_words(url, part);
  words.insert(words.begin() + 1,
               {"--write-out", "%{http_code}", "--show-error",
                shows ? "--progress-bar" : "--silent"});
  fmt::print("{}\n", url);
  flush_output(stdout);
  for (int tries = 1;; ++tries) {
    const int64_t had = size_of(part);
    CommandResult curl;
    if (had < file.bytes) {
      curl = run_program(words, shows, part, file.bytes);
    }
    if (size_of(part) == file.bytes && sha256_of(part) == file.sha256) {
      return fs::rename(part, path);
    }
    if (size_of(part) - had > (file.bytes - had) / 100) tries = 0;
    const bool is_other_file = curl.ok() || size_of(part) > file.bytes ||
                               curl.exit_code == kCantContinue ||
                               curl.out == "416";
    const bool is_final =
        is_other_file ? had == 0
                      : curl.out.starts_with('4') ||
                            std::ranges::count(kFinalExits, curl.exit_code);
    if (is_other_file) fs::remove(part);
    if (tries < kTries && !is_final) {
      if (!is_other_file) wait_for(-1, 0, deadline_in(tries), is_interrupted);
      continue;
    }
    throw DataError(
        {.code = ErrorCode::kDownloadFailed,
         .what = "can't download " + url,
         .expected = "a file with SHA-256 " + file.sha256,
         .got = is_other_file ? "a different file"
                : shows       ? "the error of curl above"
                              : first_line(curl.err),
         .fix = "check the disk and the network (curl reads $https_proxy and "
                "$CURL_CA_BUNDLE) and run this again, or name another "
                "--mirror"});
  }
}

bool is_unpacked(const RemoteFile& file, const fs::path& dir,
                 const fs::path& record) {
  if (!fs::exists(record)) return false;
  const std::string text = read_file(record, 64 << 10);
  return std::ranges::all_of(file.members, [&](const fs::path& member) {
    const size_t end = text.find("  " + member.filename().string() + "\n");
    return end != std::string::npos && end >= 64 &&
           has_file(dir / member.filename(), text.substr(end - 64, 64));
  });
}

void unpack(const RemoteFile& file, const fs::path& dir,
            const fs::path& record) {
  const AtomicFolder aside(dir / "unpacked");  // removed at the end
  const auto tar = run_program(tar_words(file, dir, aside.temporary()));
  std::string digests;
  for (const fs::path member : file.members) {
    const fs::path from = aside.temporary() / member.filename();
    if (!tar.ok() || !fs::is_regular_file(fs::symlink_status(from))) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = "can't unpack " + (dir / file.name).string(),
                       .expected = "the file " + member.string(),
                       .got = tar.ok() ? "none" : first_line(tar.err),
                       .fix = "check the space on the disk, or remove the "
                              "archive and run this again"});
    }
    const std::string digest = sha256_of(from);
    const fs::path to = dir / member.filename();
    if (!has_file(to, digest)) fs::rename(from, to);
    digests += digest + "  " + member.filename().string() + "\n";
  }
  write_atomically(record, digests);
}

// Prints what fetch_dataset() does with `file`, for a shell.
void print_commands(const RemoteFile& file, const fs::path& dir,
                    const std::string& url) {
  const std::string path = dir / file.name, part = path + ".part";
  fmt::print("{}\necho {} | sha256sum --check\n{}\n",
             shell_command(curl_words(url, part)),
             shell_command({file.sha256 + "  " + part}),
             shell_command({"mv", part, path}));
  if (file.members.empty()) return;
  fmt::print("{}\n", shell_command(tar_words(file, dir, dir)));
}

void run(const std::string& name, const std::string& dir,
         const std::string& mirror) {
  if (!mirror.empty() && !mirror.starts_with("https://")) {
    throw BadUsage("[usage] --mirror must begin with https://, got " + mirror);
  }
  // The option accepts only the names of datasets.
  const auto& dataset =
      *std::ranges::find(datasets(), name, &RemoteDataset::name);
  const InterruptScope interrupts;
  try {
    const bool is_new =
        fetch_dataset(dataset, dir, mirror.empty() ? dataset.url : mirror);
    fmt::print("{} is {}downloaded and verified in {}\n", name,
               is_new ? "" : "already ", dir);
    fmt::print("lockstep train --data {} --data-dir {}\n", name, dir);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInterrupted) throw;
    fmt::print(stderr, "{}\n", error.what());
    throw CLI::RuntimeError(kExitSignal + InterruptScope::signal());
  }
}

}  // namespace

bool fetch_dataset(const RemoteDataset& dataset, const std::string& dir,
                   const std::string& url) {
  make_directories(dir);
  const FileDescriptor folder(
      ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (try_lock(folder) == FileLock::kTaken) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "another process downloads to " + dir,
                   .fix = "wait for it, or name another --dir"});
  }
  sweep_unfinished_folders(dir);
  const std::string base = url.ends_with('/') ? url : url + '/';
  const fs::path record = fs::path(dir) / (dataset.name + ".sha256");
  std::vector<RemoteFile> missing = dataset.files;
  std::erase_if(missing, [&](const RemoteFile& file) {
    return file.members.empty()
               ? has_file(fs::path(dir) / file.name, file.sha256)
               : is_unpacked(file, dir, record);
  });
  std::set<std::string> programs;
  for (const auto& file : missing) {
    if (!fs::exists(fs::path(dir) / file.name)) programs.insert("curl");
    if (!file.members.empty()) programs.insert({"gzip", "tar"});
  }
  try {
    for (const auto& program : programs) run_program({program, "--version"});
  } catch (const ProcessStartError&) {
    fmt::print("These commands do the same:\n");
    for (const auto& file : missing)
      print_commands(file, dir, base + file.name);
    throw;
  }
  for (const auto& file : missing) {
    const fs::path path = fs::path(dir) / file.name;
    // An archive that the user has put there is used and kept.
    const bool was_there = has_file(path, file.sha256);
    if (!was_there) download(base + file.name, file, path);
    if (file.members.empty()) continue;
    unpack(file, dir, record);
    if (!was_there) fs::remove(path);
  }
  return !missing.empty();
}

void add_data(CLI::App& app) {
  auto* command =
      add_command(app, "data", "Download and verify an image dataset");
  struct Flags {
    std::string name, dir, mirror;
  };
  auto flags = std::make_shared<Flags>();
  std::vector<std::string> names;
  for (const auto& dataset : datasets()) names.push_back(dataset.name);
  add_options(*command,
              {{.name = "name",
                .value = &flags->name,
                .help = fmt::format("{}", fmt::join(names, ", ")),
                .words = names,
                .is_required = true},
               {.name = "--dir",
                .value = &flags->dir,
                .help = "folder for its files; created if it doesn't exist",
                .type = "DIR",
                .is_required = true},
               {.name = "--mirror",
                .value = &flags->mirror,
                .help = "https:// address of a folder with the same files",
                .type = "URL",
                .default_text = "the publisher's"}});
  command->footer(
      "Runs curl and tar, and verifies every file with its SHA-256. After "
      "Ctrl-C, the same command continues the download. curl reads "
      "$https_proxy and $CURL_CA_BUNDLE.\n\n"
      "Example:\n"
      "  lockstep data mnist --dir data/mnist\n"
      "  lockstep train --data mnist --data-dir data/mnist --max-steps 200");
  command->callback([flags] { run(flags->name, flags->dir, flags->mirror); });
}

}  // namespace lockstep::cli
