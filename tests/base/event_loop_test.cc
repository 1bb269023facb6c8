#include "lockstep/base/event_loop.h"

#include <array>
#include <atomic>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <sys/epoll.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Clock::time_point late() { return Clock::now() + std::chrono::minutes(1); }

/// A pipe that can be read from at once.
Pipe ready_pipe() {
  Pipe pipe = make_pipe();
  EXPECT_EQ(::write(pipe.write.get(), "x", 1), 1);
  return pipe;
}

/// Counts the signals SIGUSR1 that were handled.
class HandledSignal {
 public:
  HandledSignal() {
    count = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { ++count; };  // without SA_RESTART
    ::sigaction(SIGUSR1, &action, &former_);
  }
  ~HandledSignal() { ::sigaction(SIGUSR1, &former_, nullptr); }
  HandledSignal(const HandledSignal&) = delete;
  HandledSignal& operator=(const HandledSignal&) = delete;

  /// Sends the signal to `thread` until it was handled `times` times in all.
  /// Each time, it waits until the last one was handled.
  static void send(pthread_t thread, int times) {
    while (count < times) {
      const int before = count;
      ::pthread_kill(thread, SIGUSR1);
      while (count == before) std::this_thread::yield();
    }
  }

  static inline std::atomic<int> count = 0;

 private:
  struct sigaction former_ {};
};

TEST(EventLoop, CallsTheHandlerOfWhatIsReady) {
  EventLoop loop;
  const Pipe ready = ready_pipe(), other = make_pipe();
  int calls = 0;
  loop.add(ready.read.get(), EPOLLIN, [&](uint32_t events) {
    EXPECT_EQ(events, EPOLLIN);
    ++calls;
  });
  loop.add(other.read.get(), EPOLLIN, [&](uint32_t) { FAIL(); });
  EXPECT_TRUE(loop.run_once());
  EXPECT_EQ(calls, 1);
  // It is still ready.
  EXPECT_TRUE(loop.run_once());
  EXPECT_EQ(calls, 2);
}

TEST(EventLoop, ReportsTheEndOfADescriptorThatIsNotReadFrom) {
  EventLoop loop;
  Pipe pipe = make_pipe();
  pipe.read.close();
  uint32_t reported = 0;
  loop.add(pipe.write.get(), EPOLLOUT,
           [&](uint32_t events) { reported = events; });
  loop.run_once();
  EXPECT_NE(reported & EPOLLERR, 0);
}

TEST(EventLoop, NeedsNoHandlerToReturn) {
  EventLoop loop;
  const Pipe ready = ready_pipe();
  loop.add(ready.read.get(), EPOLLIN);
  EXPECT_TRUE(loop.run_once());
}

TEST(EventLoop, CallsNoHandlerThatAnotherOneRemoved) {
  EventLoop loop;
  const std::array pipes{ready_pipe(), ready_pipe()};
  int calls = 0;
  for (const size_t i : {0, 1}) {
    loop.add(pipes[i].read.get(), EPOLLIN, [&, i](uint32_t) {
      ++calls;
      loop.remove(pipes[1 - i].read.get());
    });
  }
  loop.run_once();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, DoesNotTakeEventsForADescriptorWithTheSameNumber) {
  EventLoop loop;
  std::array pipes{ready_pipe(), ready_pipe()};
  Pipe quiet = make_pipe();
  int calls = 0;
  for (const size_t i : {0, 1}) {
    loop.add(pipes[i].read.get(), EPOLLIN, [&, i](uint32_t) {
      ++calls;
      const int number = pipes[1 - i].read.get();
      loop.remove(number);
      // This also closes the old descriptor.
      ASSERT_EQ(::dup2(quiet.read.get(), number), number);
      loop.add(number, EPOLLIN, [&](uint32_t) { FAIL(); });
    });
  }
  loop.run_once();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, LetsAHandlerRemoveItself) {
  EventLoop loop;
  const Pipe ready = ready_pipe();
  std::string kept = "what the handler has";
  loop.add(ready.read.get(), EPOLLIN, [&loop, &ready, kept](uint32_t) {
    loop.remove(ready.read.get());
    EXPECT_EQ(kept, "what the handler has");
  });
  EXPECT_TRUE(loop.run_once());
  loop.remove(ready.read.get());  // has no effect
  loop.add(ready.read.get(), EPOLLIN, [&](uint32_t) { kept = "called"; });
  EXPECT_TRUE(loop.run_once());
  EXPECT_EQ(kept, "called");
}

TEST(EventLoop, ReportsNothingWhileNoEventsAreWaitedFor) {
  EventLoop loop;
  Pipe pipe = ready_pipe();
  pipe.write.close();  // hangs up, which epoll would always report
  int calls = 0;
  loop.add(pipe.read.get(), EPOLLIN, [&](uint32_t) { ++calls; });
  loop.change(pipe.read.get(), 0);
  loop.run_once(Clock::now());
  EXPECT_EQ(calls, 0);
  loop.change(pipe.read.get(), EPOLLIN);
  loop.run_once(late());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, ReportsNoEventsThatAHandlerNoLongerWants) {
  EventLoop loop;
  const std::array pipes{ready_pipe(), ready_pipe()};
  int calls = 0;
  for (const size_t i : {0, 1}) {
    loop.add(pipes[i].read.get(), EPOLLIN, [&, i](uint32_t) {
      ++calls;
      loop.change(pipes[1 - i].read.get(), 0);
    });
  }
  loop.run_once();
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, RefusesWhatItCannotWaitFor) {
  EventLoop loop;
  const TemporaryFolder folder;
  const FileDescriptor file(
      ::open(folder.path("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  EXPECT_THROW(loop.add(file.get(), EPOLLIN), IoError);
  EXPECT_THROW(loop.add(-1, EPOLLIN), IoError);
  const Pipe pipe = ready_pipe();
  // The failure left nothing behind.
  ASSERT_EQ(::dup2(pipe.read.get(), file.get()), file.get());
  loop.add(file.get(), EPOLLIN);
  EXPECT_THROW(loop.add(file.get(), EPOLLIN), InvalidArgument);
  EXPECT_TRUE(loop.run_once());
}

TEST(EventLoop, GoesOnAfterAnException) {
  EventLoop loop;
  const Pipe ready = ready_pipe();
  int calls = 0;
  loop.add(ready.read.get(), EPOLLIN, [&](uint32_t) {
    if (++calls == 1) throw std::runtime_error("once");
  });
  EXPECT_THROW(loop.run_once(), std::runtime_error);
  EXPECT_TRUE(loop.run_once());
  EXPECT_EQ(calls, 2);
}

TEST(EventLoop, RunsTasksInOrder) {
  EventLoop loop;
  const auto now = Clock::now();
  std::string order;
  loop.at(now + milliseconds(2), [&] { order += "d"; });
  loop.at(now - milliseconds(2), [&] { order += "a"; });
  loop.at(now, [&] { order += "b"; });
  loop.at(now, [&] { order += "c"; });
  while (order.size() < 4) loop.run_once(late());
  EXPECT_EQ(order, "abcd");
  EXPECT_GE(Clock::now(), now + milliseconds(2));
}

TEST(EventLoop, WakesUpForATaskAndNotForALaterOne) {
  EventLoop loop;
  bool has_run = false;
  loop.at(Clock::now() + milliseconds(5), [&] { has_run = true; });
  loop.at(late(), [] { FAIL(); });
  while (!has_run) loop.run_once();
}

TEST(EventLoop, RunsATaskThatATaskAddedInTheNextTurn) {
  EventLoop loop;
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    loop.at(Clock::now(), again);
  };
  loop.at(Clock::now(), again);
  loop.run_once();
  EXPECT_EQ(runs, 1);
  loop.run_once();
  EXPECT_EQ(runs, 2);
}

TEST(EventLoop, KeepsTheOtherTasksAfterAnException) {
  EventLoop loop;
  int runs = 0;
  loop.at(Clock::now(), [] { throw std::runtime_error("once"); });
  loop.at(Clock::now(), [&] { ++runs; });
  EXPECT_THROW(loop.run_once(), std::runtime_error);
  EXPECT_TRUE(loop.run_once());
  EXPECT_EQ(runs, 1);
}

TEST(EventLoop, WaitsUntilItsDeadlineAndNotLess) {
  EventLoop loop;
  EXPECT_TRUE(loop.run_once(Clock::time_point::min()));
  const auto until = Clock::now() + milliseconds(3);
  EXPECT_TRUE(loop.run_once(until));
  EXPECT_GE(Clock::now(), until);
}

TEST(EventLoop, IsWokenByAnyThread) {
  EventLoop loop;
  std::thread other([&] { loop.wake(); });
  EXPECT_TRUE(loop.run_once());
  other.join();
  // A call counts even if nobody waits yet, and several count once.
  loop.wake();
  loop.wake();
  EXPECT_TRUE(loop.run_once());
  EXPECT_TRUE(loop.run_once(Clock::now()));
}

TEST(EventLoop, IsStoppedByAnyThread) {
  EventLoop loop;
  const Pipe pipe = make_pipe();
  loop.add(pipe.read.get(), EPOLLIN, [&](uint32_t) { FAIL(); });
  std::thread other([&] {
    loop.stop();
    EXPECT_EQ(::write(pipe.write.get(), "x", 1), 1);
  });
  loop.run();
  other.join();
  EXPECT_FALSE(loop.run_once());
  loop.run();
}

TEST(EventLoop, ReturnsAfterASignal) {
  EventLoop loop;
  const HandledSignal signal;
  std::atomic<bool> has_returned = false;
  // A signal may arrive before the loop waits.
  std::thread other([&, waiting = ::pthread_self()] {
    for (int sent = 1; !has_returned; ++sent) signal.send(waiting, sent);
  });
  EXPECT_TRUE(loop.run_once());
  has_returned = true;
  other.join();
}

TEST(WaitFor, ReturnsWhenTheDescriptorIsReady) {
  const Pipe pipe = make_pipe();
  std::thread writer([&] { EXPECT_EQ(::write(pipe.write.get(), "x", 1), 1); });
  EXPECT_TRUE(wait_for(pipe.read.get(), POLLIN, late()));
  writer.join();
  EXPECT_TRUE(wait_for(pipe.write.get(), POLLOUT, Clock::time_point::max()));
}

TEST(WaitFor, ReturnsWhenTheOtherEndIsClosed) {
  Pipe pipe = make_pipe();
  std::thread closer([&] { pipe.write.close(); });
  EXPECT_TRUE(wait_for(pipe.read.get(), 0, late()));
  closer.join();
}

TEST(WaitFor, LooksOnceIfTheDeadlineIsOver) {
  const Pipe ready = ready_pipe(), other = make_pipe();
  for (const auto past : {Clock::time_point::min(), Clock::time_point(),
                          Clock::now() - milliseconds(1)}) {
    EXPECT_TRUE(wait_for(ready.read.get(), POLLIN, past));
    EXPECT_FALSE(wait_for(other.read.get(), POLLIN, past));
  }
}

TEST(WaitFor, WaitsUntilTheDeadlineAndNotLess) {
  const Pipe pipe = make_pipe();
  for (const int fd : {pipe.read.get(), -1}) {
    const auto deadline = Clock::now() + std::chrono::microseconds(2100);
    EXPECT_FALSE(wait_for(fd, POLLIN, deadline));
    EXPECT_GE(Clock::now(), deadline);
  }
}

TEST(WaitFor, GoesOnAfterSignals) {
  const HandledSignal signal;
  const Pipe pipe = make_pipe();
  std::thread other([&, waiting = ::pthread_self()] {
    signal.send(waiting, 100);
    EXPECT_EQ(::write(pipe.write.get(), "x", 1), 1);
  });
  EXPECT_TRUE(wait_for(pipe.read.get(), POLLIN, late()));
  EXPECT_EQ(signal.count, 100);
  other.join();
}

TEST(WaitFor, ReturnsWhenItIsOver) {
  const Pipe ready = ready_pipe(), other = make_pipe();
  EXPECT_FALSE(wait_for(ready.read.get(), POLLIN, late(), [] { return true; }));
  // Asked again and again.
  int asked = 0;
  EXPECT_FALSE(wait_for(other.read.get(), POLLIN, Clock::time_point::max(),
                        [&] { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_TRUE(wait_for(ready.read.get(), POLLIN, late(), [] { return false; }));
}

TEST(WaitFor, AsksWhetherItIsOverAfterASignal) {
  const HandledSignal signal;
  std::thread other(
      [&, waiting = ::pthread_self()] { signal.send(waiting, 1); });
  EXPECT_FALSE(wait_for(-1, 0, Clock::time_point::max(),
                        [&] { return signal.count > 0; }));
  other.join();
}

TEST(PollTimeout, IsRoundedUpAndLimited) {
  EXPECT_EQ(poll_timeout_ms(Clock::time_point::min()), 0);
  EXPECT_EQ(poll_timeout_ms(Clock::now()), 0);
  EXPECT_EQ(poll_timeout_ms(Clock::time_point::max()), 1'000'000);
  const auto now = Clock::now();
  const int timeout = poll_timeout_ms(now + std::chrono::minutes(1));
  EXPECT_GE(Clock::now() + milliseconds(timeout),
            now + std::chrono::minutes(1));
}

}  // namespace
}  // namespace lockstep
