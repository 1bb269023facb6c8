#pragma once

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

namespace lockstep {

/// While it lives, of the launchers' variables only these are set.
class ScopedEnvironment {
 public:
  explicit ScopedEnvironment(
      const std::map<std::string, std::string>& variables) {
    for (const auto& name : launcher_variables()) change(name, std::nullopt);
    for (const auto& [name, value] : variables) change(name, value);
  }
  ~ScopedEnvironment() {
    for (auto it = before_.rbegin(); it != before_.rend(); ++it) {
      set(it->first, it->second);
    }
  }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  using Value = std::optional<std::string>;

  static std::vector<std::string> launcher_variables() {
    std::vector<std::string> found;
    for (char** entry = ::environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      const std::string name(text.substr(0, text.find('=')));
      for (const char* start :
           {"RANK", "WORLD_SIZE", "LOCAL_", "GROUP_RANK", "MASTER_",
            "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_"}) {
        if (name.starts_with(start)) found.push_back(name);
      }
    }
    return found;
  }
  static void set(const std::string& name, const Value& value) {
    if (value) {
      ::setenv(name.c_str(), value->c_str(), 1);
    } else {
      ::unsetenv(name.c_str());
    }
  }
  void change(const std::string& name, const Value& value) {
    const char* old = std::getenv(name.c_str());
    before_.emplace_back(name, old == nullptr ? Value() : Value(old));
    set(name, value);
  }

  std::vector<std::pair<std::string, Value>> before_;
};

}  // namespace lockstep
