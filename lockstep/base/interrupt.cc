#include "lockstep/base/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace lockstep {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM};

std::atomic<int> received{0};
std::atomic<int> open_scopes{0};
std::array<struct sigaction, kSignals.size()> previous;

static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may not take a lock");

void on_signal(int signal) {
  if (received.exchange(signal) == 0) return;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    if (kSignals[i] != signal) continue;
    struct sigaction former = previous[i];
    // A shell starts its background jobs with SIGINT ignored; who sends it a
    // second time means it.
    if (former.sa_handler == SIG_IGN) former.sa_handler = SIG_DFL;
    ::sigaction(signal, &former, nullptr);
  }
  // Blocked until this handler returns, then taken by the former one.
  ::raise(signal);
}

}  // namespace

InterruptScope::InterruptScope() {
  if (open_scopes++ > 0) return;
  received = 0;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &action, &previous[i]);
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
