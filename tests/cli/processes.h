#pragma once

#include <cctype>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <poll.h>
#include <string>
#include <sys/types.h>
#include <vector>

#include "lockstep/launch/rendezvous/endpoint.h"

namespace lockstep {

/// Returns the numbers after each "pid " in `text`, which workers print.
inline std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (size_t at = 0; (at = text.find("pid ", at)) != std::string::npos;) {
    at += 4;
    if (std::isdigit(static_cast<unsigned char>(text[at])) == 0) continue;
    pids.push_back(std::atoi(text.c_str() + at));
  }
  return pids;
}

/// Returns the state letter of a process in /proc, or 'X' if it is gone. A
/// zombie ('Z') is as good as gone.
inline char state_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto bracket = text.rfind(')');
  return bracket == std::string::npos ? 'X' : text[bracket + 2];
}

/// Returns the children that run `name`, in the order of their start.
inline std::vector<pid_t> children_of(pid_t parent, const std::string& name) {
  const std::string process = "/proc/" + std::to_string(parent);
  std::ifstream list(process + "/task/" + std::to_string(parent) + "/children");
  std::vector<pid_t> found;
  for (pid_t child = 0; list >> child;) {
    std::ifstream file("/proc/" + std::to_string(child) + "/comm");
    std::string line;
    if (std::getline(file, line) && line == name) found.push_back(child);
  }
  return found;
}

/// Returns the living worker of `agent` that is `rank`; -1 if it has died.
inline pid_t worker_of(pid_t agent, int rank) {
  const std::string wanted = "RANK=" + std::to_string(rank);
  for (const pid_t pid : children_of(agent, "lockstep")) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
    for (std::string entry; std::getline(file, entry, '\0');) {
      if (entry == wanted && state_of(pid) != 'Z') return pid;
    }
  }
  return -1;
}

/// Waits until `holds()` is true. Returns false after 60 seconds.
template <class Condition>
bool wait_until(Condition holds) {
  using std::chrono::steady_clock;
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (steady_clock::now() > deadline) return false;
    ::poll(nullptr, 0, 10);
  }
  return true;
}

inline bool is_gone(pid_t pid) {
  return wait_until([pid] {
    const char state = state_of(pid);
    return state == 'X' || state == 'Z';
  });
}

/// Returns the digest of the parameters that a run prints.
inline std::string digest_in(const std::string& out) {
  const std::string key = "parameter_sha256 ";
  const auto at = out.find(key);
  return at == std::string::npos ? "none in: " + out
                                 : out.substr(at + key.size(), 64);
}

/// Returns a port of loopback that is free at the moment.
inline std::string free_port() {
  launch::Endpoint endpoint{.host = "127.0.0.1", .port = 0};
  launch::listen_at(endpoint).clear();
  return std::to_string(endpoint.port);
}

}  // namespace lockstep
