#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/core.h"

// Used by the small programs: checked arguments, --help, and errors on one
// line.

/// Thrown if the user typed something that can't be used.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Reads the arguments of a program one after another, by their `names`.
/// Trailing arguments may be left out.
class Arguments {
 public:
  /// Prints the usage and ends the program if --help is given. Throws
  /// UsageError for any other option, and if there are more arguments than
  /// names.
  Arguments(int argc, char** argv, const std::string& names)
      : given_(argv + 1, argv + argc) {
    const std::string path = argv[0];
    usage_ = "usage: " + path.substr(path.rfind('/') + 1);
    std::istringstream words(names);
    for (std::string name; words >> name;) {
      names_.push_back(name);
      usage_ += " [" + name + "]";
    }
    for (const auto& argument : given_) {
      if (argument == "--help" || argument == "-h") {
        std::puts(usage_.c_str());
        std::exit(lockstep::kExitDone);
      }
      if (argument.starts_with("--")) fail("unknown option " + argument);
    }
    if (given_.size() > names_.size()) {
      fail("expected at most " + std::to_string(names_.size()) +
           " arguments, got " + std::to_string(given_.size()));
    }
  }

  std::string text(const std::string& otherwise) {
    const size_t at = next_++;
    return at < given_.size() ? given_[at] : otherwise;
  }

  int64_t number(int64_t otherwise, int64_t least = 1) {
    const std::string word = text(std::to_string(otherwise));
    int64_t value = 0;
    const char* end = word.data() + word.size();
    const auto read = std::from_chars(word.data(), end, value);
    const bool is_given = next_ <= given_.size();
    if (is_given &&
        (read.ec != std::errc() || read.ptr != end || value < least))
      fail(names_[next_ - 1] + ": expected a whole number of at least " +
           std::to_string(least) + ", got '" + word + "'");
    return value;
  }

  /// Returns whether the next argument is present. It must be its own name.
  bool word() {
    const std::string name = names_[next_];
    const std::string given = text("");
    if (!given.empty() && given != name)
      fail("expected '" + name + "', got '" + given + "'");
    return !given.empty();
  }

  /// Returns the content of a file, or "" if the argument is missing.
  std::string file_text() {
    const std::string path = text("");
    std::ifstream file(path);
    if (!path.empty() && !file) fail("can't read the file '" + path + "'");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  /// Returns the devices of an argument such as "2xcpu". Slices may share
  /// cores.
  std::vector<lockstep::Device> devices() {
    try {
      return lockstep::devices(text("auto"), lockstep::Duplicates::kRefuse,
                               lockstep::Oversubscription::kAllow);
    } catch (const lockstep::DeviceError& error) {
      throw UsageError(error.what());
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError("[usage] " + what + "; " + usage_);
  }

 private:
  std::vector<std::string> given_, names_;
  std::string usage_;
  size_t next_ = 0;
};

/// Prints an error and records it for the launcher's report. Returns the exit
/// code.
inline int end_with(const std::exception& error) {
  lockstep::launch::record_error(error);
  std::fprintf(stderr, "%s\n", error.what());
  return dynamic_cast<const UsageError*>(&error) != nullptr
             ? lockstep::kExitBadUsage
             : lockstep::exit_code_of(error);
}
