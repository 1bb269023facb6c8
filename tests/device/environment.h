#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace lockstep::testing_support {

/// Sets an environment variable while it lives.
class EnvironmentScope {
 public:
  EnvironmentScope(std::string name, const std::string& value)
      : name_(std::move(name)) {
    if (const char* previous = std::getenv(name_.c_str())) previous_ = previous;
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~EnvironmentScope() {
    if (previous_) {
      setenv(name_.c_str(), previous_->c_str(), 1);
    } else {
      unsetenv(name_.c_str());
    }
  }
  EnvironmentScope(const EnvironmentScope&) = delete;
  EnvironmentScope& operator=(const EnvironmentScope&) = delete;

 private:
  std::string name_;
  std::optional<std::string> previous_;
};

}  // namespace lockstep::testing_support
