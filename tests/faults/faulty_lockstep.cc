// The program, with a fault at an exact place of a run:
//
//   LOCKSTEP_FAULT=kill@backward:step=7:rank=1 LOCKSTEP_FAULT_FOLDER=DIR
//
// sends SIGKILL to rank 1 when it begins a backward after 7 or more steps. A
// fault at the start comes before anything else. A fault comes once per job,
// and DIR/fired has its time.
//
//   LOCKSTEP_LINK_FAULTS='corrupt:cpu:0>cpu:1'
//
// breaks links between slices: see link_faults.h. The check of the links, which
// is made in a child process, has the same faults.
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/cli/program/app.h"
#include "lockstep/control/worker_side.h"
#include "tests/faults/link_faults.h"

namespace {

struct Fault {
  std::string kind;
  std::string phase;
  uint64_t step = 0;
  std::string rank;
  std::string folder;
};

// Never destroyed, because threads may still read it when the process ends.
const Fault* wanted = nullptr;

std::string value_of(const std::string& text, const std::string& key) {
  const auto at = text.find(":" + key + "=");
  if (at == std::string::npos) {
    throw std::runtime_error("LOCKSTEP_FAULT has no " + key + ": " + text);
  }
  const auto begin = at + key.size() + 2;
  return text.substr(begin, text.find(':', begin) - begin);
}

Fault parse(const std::string& text) {
  const auto at = text.find('@');
  return {.kind = text.substr(0, at),
          .phase = text.substr(at + 1, text.find(':') - at - 1),
          .step = std::stoull(value_of(text, "step")),
          .rank = value_of(text, "rank"),
          .folder = lockstep::env("LOCKSTEP_FAULT_FOLDER").value_or(".")};
}

// Returns false if there was a fault before. The clock is Python's
// time.monotonic().
bool is_first() {
  const std::string path = wanted->folder + "/fired";
  const int fd =
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const std::string line = fmt::format("{} {}\n", now.count(), ::getpid());
  const bool is_written =
      ::write(fd, line.data(), line.size()) == ssize_t(line.size());
  ::close(fd);
  return is_written;
}

// Allocated memory is freed again, and the limit stays.
[[noreturn]] void run_out_of_memory() {
  constexpr uint64_t kLeftBytes = 32U << 20U;
  constexpr size_t kBlockBytes = 1U << 20U;
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const auto page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * page_bytes + kLeftBytes;
  ::setrlimit(RLIMIT_AS, &limit);
  std::vector<std::vector<char>> blocks;
  for (;;) blocks.emplace_back(kBlockBytes, 'x');
}

// Waits until tools/faults.py has done its part.
void wait_for_harness() {
  constexpr int kTries = 12000;
  const std::string done = wanted->folder + "/done";
  for (int i = 0; i < kTries && ::access(done.c_str(), F_OK) != 0; ++i) {
    ::poll(nullptr, 0, 5);
  }
}

void strike() {
  constexpr int kSlowMs = 1000;
  const std::string& kind = wanted->kind;
  if (kind == "kill") ::kill(::getpid(), SIGKILL);
  if (kind == "stop") ::kill(::getpid(), SIGSTOP);
  if (kind == "term") ::kill(::getpid(), SIGTERM);
  if (kind == "usr1") ::kill(::getpid(), SIGUSR1);
  if (kind == "exit") std::exit(1);
  if (kind == "throw") throw std::runtime_error("an exception, as ordered");
  if (kind == "oom") run_out_of_memory();
  if (kind == "slow") ::poll(nullptr, 0, kSlowMs);
  if (kind == "ask") wait_for_harness();
}

void on_phase(lockstep::control::Phase phase, uint64_t steps) {
  const bool is_here = steps >= wanted->step &&
                       wanted->phase == lockstep::control::name_of(phase);
  if (is_here && is_first()) strike();
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto text = lockstep::env("LOCKSTEP_FAULT")) {
    wanted = new Fault(parse(*text));
    if (lockstep::env("RANK") == wanted->rank) {
      lockstep::control::set_phase_hook(on_phase);
      on_phase(lockstep::control::Phase::kStart, 0);
    }
  }
  lockstep::inject_link_faults_of_environment();
  return lockstep::cli::run_program(argc, argv);
}
