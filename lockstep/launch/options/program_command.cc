#include "lockstep/launch/options/program_command.h"

#include <filesystem>
#include <sstream>
#include <unistd.h>

#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// Returns a suggestion: a file in the folder of `path` with a similar name.
std::string hint(const fs::path& path) {
  std::vector<std::string> names;
  std::error_code error;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (is_file(it->path())) names.push_back(it->path().filename().string());
  }
  const std::string near = nearest(path.filename().string(), names);
  if (near.empty()) return "check its name and the working folder";
  return "did you mean '" + (folder / near).string() + "'?";
}

// Returns the interpreter that the user's shell would start. An activated
// virtual environment comes first in PATH. One that an editor or a batch script
// only names in VIRTUAL_ENV does not, so that variable is checked too.
std::string python() {
  if (const auto chosen = env("PYTHON_EXEC")) return *chosen;
  if (const auto folder = env("VIRTUAL_ENV")) {
    const auto path = (fs::path(*folder) / "bin/python3").string();
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "python3";
}

[[noreturn]] void not_found(const std::string& name, const std::string& where,
                            const std::string& fix) {
  throw LaunchError({.code = ErrorCode::kProcessStart,
                     .what = "can't start the program '" + name + "'",
                     .expected = "an executable file" + where,
                     .got = "no such file",
                     .fix = fix});
}

[[noreturn]] void not_allowed(const std::string& path) {
  throw LaunchError(
      {.code = ErrorCode::kProcessStart,
       .what = "can't start the program '" + path + "'",
       .expected = "an executable file",
       .got = "a file without permission to execute",
       .fix = "run `chmod +x " + path +
              "`, or run a script with its interpreter, such as `bash " + path +
              "`"});
}

}  // namespace

std::vector<std::string> program_command(std::vector<std::string> words,
                                         ProgramKind kind) {
  if (words.empty()) {
    throw InvalidArgument("launch",
                          {.code = ErrorCode::kProcessStart,
                           .what = "no program to run",
                           .fix = "put it after the options: lockstep run "
                                  "--nproc-per-node 2 -- ./program ARGUMENTS"});
  }
  const bool is_script =
      kind == ProgramKind::kPythonScript ||
      (kind == ProgramKind::kByName && words.front().ends_with(".py"));
  if (is_script && !is_file(words.front())) {
    not_found(words.front(), "", hint(words.front()));
  }
  if (kind == ProgramKind::kPythonModule) words.insert(words.begin(), "-m");
  if (is_script || kind == ProgramKind::kPythonModule) {
    // -u, as with torchrun: output is not buffered, so a line appears as soon
    // as it is printed.
    words.insert(words.begin(), "-u");
    words.insert(words.begin(), python());
  }
  return words;
}

bool is_python(const std::vector<std::string>& command) {
  return fs::path(command.front()).filename().string().starts_with("python");
}

std::string find_program(
    const std::string& name,
    const std::map<std::string, std::string>& environment) {
  if (name.find('/') != std::string::npos) {
    if (!is_file(name)) not_found(name, "", hint(name));
    if (::access(name.c_str(), X_OK) != 0) not_allowed(name);
    return name;
  }
  std::string refused;
  const auto added = environment.find("PATH");
  std::istringstream folders(
      added != environment.end()
          ? added->second
          : env("PATH").value_or("/usr/local/bin:/usr/bin:/bin"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto path = (fs::path(folder.empty() ? "." : folder) / name).string();
    if (!is_file(path)) continue;
    if (::access(path.c_str(), X_OK) == 0) return path;
    refused = path;
  }
  if (!refused.empty()) not_allowed(refused);
  not_found(name, " in $PATH",
            is_file(name) ? "to run the one in this folder, write ./" + name
                          : "check its name, or give its path");
}

}  // namespace lockstep::launch
