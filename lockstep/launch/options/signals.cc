#include "lockstep/launch/options/signals.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

std::vector<std::string> handled_names() {
  std::vector<std::string> names;
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD) continue;
    if (::sigabbrev_np(signal) != nullptr) names.push_back(signal_name(signal));
  }
  return names;
}

int number_of(const std::string& name) {
  const auto known = handled_names();
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw InvalidArgument(
        "launch",
        {.code = ErrorCode::kBadOption,
         .what = "can't handle the signal '" + name + "'",
         .expected = "names such as SIGTERM,SIGINT,SIGUSR1",
         .got = "'" + name + "'",
         .fix = did_you_mean(name, {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT",
                                    "SIGUSR1", "SIGUSR2"})});
  }
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (signal_name(signal) == name) return signal;
  }
  return 0;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name
                         : "signal " + std::to_string(signal);
}

std::vector<int> parse_signals(const std::string& names) {
  std::vector<int> signals;
  std::istringstream words(names);
  for (std::string word; std::getline(words, word, ',');) {
    const int number = number_of(word);
    if (std::find(signals.begin(), signals.end(), number) == signals.end()) {
      signals.push_back(number);
    }
  }
  return signals;
}

}  // namespace lockstep::launch
