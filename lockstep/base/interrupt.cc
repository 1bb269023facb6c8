#include "lockstep/base/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace lockstep {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM, SIGUSR1, SIGHUP};
// Time after the first signal in which others count as the same request.
constexpr double kSameRequestS = 3;

std::atomic<int> received{0};
std::atomic<int64_t> received_at_s{0};
std::atomic<int> open_scopes{0};
std::array<struct sigaction, kSignals.size()> previous;

static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may not take a lock");

int64_t now_s() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec;
}

void on_signal(int signal) {
  const int first = received.exchange(signal);
  if (first == 0) received_at_s = now_s();
  const auto later_s = static_cast<double>(now_s() - received_at_s);
  if (first == 0 || is_same_request(first, signal, later_s)) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != signal) continue;
    struct sigaction former = previous[i];
    // A shell starts its background jobs with SIGINT ignored. A second SIGINT
    // is intentional and must end the process.
    if (former.sa_handler == SIG_IGN) former.sa_handler = SIG_DFL;
    ::sigaction(signal, &former, nullptr);
  }
  // Blocked until this handler returns, then passed to the former handler.
  ::raise(signal);
}

}  // namespace

bool is_same_request(int first, int signal, double seconds_later) {
  if (signal == SIGINT) return false;
  // Schedulers send SIGUSR1 as a warning and SIGTERM as the request itself.
  return seconds_later <= kSameRequestS ||
         (first == SIGUSR1 && signal == SIGTERM);
}

InterruptScope::InterruptScope() {
  if (open_scopes++ > 0) return;
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &previous[i]);
    // nohup: the run continues when its terminal is closed.
    const bool is_kept =
        kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN;
    if (!is_kept) ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptScope::~InterruptScope() {
  if (--open_scopes > 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &previous[i], nullptr);
  }
}

int InterruptScope::signal() { return received; }

}  // namespace lockstep
