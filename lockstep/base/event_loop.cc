#include "lockstep/base/event_loop.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <span>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// Interval in which wait_for() asks whether the wait is over.
constexpr std::chrono::milliseconds kAskEvery{100};
constexpr size_t kEventsATurn = 64;

[[noreturn]] void throw_cannot_wait(const std::string& what) {
  const int error = errno;
  if (is_out_of_resources(error)) throw OutOfResources("io", what, error);
  throw IoError({.code = ErrorCode::kFileAccess,
                 .what = what,
                 .got = std::strerror(error)});
}

FileDescriptor checked_descriptor(int fd) {
  if (fd < 0) throw_cannot_wait("can't wait for events");
  return FileDescriptor(fd);
}

uint64_t packed(int fd, uint32_t number) {
  return uint64_t{number} << 32 | static_cast<uint32_t>(fd);
}

}  // namespace

EventLoop::EventLoop()
    : epoll_(checked_descriptor(::epoll_create1(EPOLL_CLOEXEC))),
      wake_(checked_descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  add(wake_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t wakes = 0;
    [[maybe_unused]] const auto got = ::read(wake_.get(), &wakes, sizeof wakes);
  });
}

void EventLoop::add(int fd, uint32_t events, Handler handler) {
  Watched watched{
      .number = next_number_++,
      .events = 0,
      .handler = std::make_shared<const Handler>(std::move(handler))};
  const auto [place, is_new] = watched_.emplace(fd, std::move(watched));
  if (!is_new) {
    throw InvalidArgument(
        "io", {.code = ErrorCode::kMisuse,
               .what = fmt::format("descriptor {} is in the loop already", fd),
               .fix = "remove it before it is closed or added again"});
  }
  try {
    set_events(fd, place->second, events);
  } catch (...) {
    watched_.erase(place);
    throw;
  }
}

void EventLoop::change(int fd, uint32_t events) {
  set_events(fd, watched_.at(fd), events);
}

void EventLoop::remove(int fd) {
  const auto found = watched_.find(fd);
  if (found == watched_.end()) return;
  set_events(fd, found->second, 0);
  watched_.erase(found);
}

void EventLoop::set_events(int fd, Watched& watched, uint32_t events) {
  if (events == watched.events) return;
  const int operation = events == 0           ? EPOLL_CTL_DEL
                        : watched.events == 0 ? EPOLL_CTL_ADD
                                              : EPOLL_CTL_MOD;
  epoll_event event{};
  event.events = events;
  event.data.u64 = packed(fd, watched.number);
  const int result = ::epoll_ctl(epoll_.get(), operation, fd, &event);
  if (result != 0 && operation != EPOLL_CTL_DEL) {
    throw_cannot_wait(fmt::format("can't wait for descriptor {}", fd));
  }
  watched.events = events;
}

void EventLoop::at(Time time, std::function<void()> task) {
  tasks_.emplace(time, std::move(task));
}

bool EventLoop::run_once(Time until) {
  if (is_stopped_) return false;
  if (!tasks_.empty()) until = std::min(until, tasks_.begin()->first);
  std::array<epoll_event, kEventsATurn> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(),
                                 poll_timeout_ms(until));
  if (is_stopped_) return false;
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events.at(static_cast<size_t>(i));
    dispatch(static_cast<int>(event.data.u64 & UINT32_MAX),
             static_cast<uint32_t>(event.data.u64 >> 32), event.events);
  }
  run_tasks();
  return true;
}

void EventLoop::dispatch(int fd, uint32_t number, uint32_t events) {
  // A handler that was called before may have removed the descriptor, and may
  // have added another one with the same number, or changed the events.
  const auto found = watched_.find(fd);
  if (found == watched_.end() || found->second.number != number) return;
  const uint32_t wanted = found->second.events;
  if (wanted != 0) events &= wanted | EPOLLERR | EPOLLHUP;
  if (wanted == 0 || events == 0) return;
  // It may remove itself.
  const auto handler = found->second.handler;
  if (*handler) (*handler)(events);
}

void EventLoop::run_tasks() {
  // Tasks that are added meanwhile have to wait for the next turn, so that
  // descriptors have theirs.
  const auto end = tasks_.upper_bound(Clock::now());
  std::multimap<Time, std::function<void()>> due;
  while (tasks_.begin() != end) due.insert(tasks_.extract(tasks_.begin()));
  while (!due.empty()) {
    const auto task = due.extract(due.begin());
    try {
      task.mapped()();
    } catch (...) {
      tasks_.merge(due);
      throw;
    }
  }
}

void EventLoop::run() {
  while (run_once()) {
  }
}

void EventLoop::stop() noexcept {
  is_stopped_ = true;
  wake();
}

void EventLoop::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const auto put = ::write(wake_.get(), &one, sizeof one);
}

bool wait_for(int fd, short events, EventLoop::Time deadline,
              const std::function<bool()>& is_over) {
  for (;;) {
    if (is_over && is_over()) return false;
    const auto until =
        is_over ? std::min(deadline, Clock::now() + kAskEvery) : deadline;
    pollfd ready{.fd = fd, .events = events, .revents = 0};
    const int count = ::poll(&ready, 1, poll_timeout_ms(until));
    if (count > 0) return true;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 || Clock::now() >= deadline) return false;
  }
}

EventLoop::Time deadline_in(double seconds) {
  // Longer times are the same, and do not overflow the clock.
  constexpr std::chrono::duration<double> kLongest = std::chrono::years(1);
  const std::chrono::duration<double> time(seconds);
  return Clock::now() +
         std::chrono::ceil<Clock::duration>(std::min(time, kLongest));
}

int poll_timeout_ms(EventLoop::Time deadline) {
  constexpr std::chrono::milliseconds kLongest{1'000'000};
  const auto now = Clock::now();
  if (deadline <= now) return 0;
  if (deadline - now >= kLongest) return static_cast<int>(kLongest.count());
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count());
}

}  // namespace lockstep
