#include "tests/differential/isolation.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::differential {

namespace {

void write_all(int file, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(file, at, size);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) ::_exit(3);
    at += done;
    size -= static_cast<size_t>(done);
  }
}

void write_text(int file, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  write_all(file, &size, sizeof(size));
  write_all(file, text.data(), text.size());
}

[[noreturn]] void work(int file, size_t first, size_t last,
                       const std::function<Verdict(size_t)>& task) {
  for (size_t i = first; i < last; ++i) {
    Verdict verdict;
    try {
      verdict = task(i);
    } catch (const std::exception& error) {
      verdict = {Verdict::Kind::kFinding, "error",
                 std::string("outside of a run: ") + error.what()};
    }
    const auto kind = static_cast<uint32_t>(verdict.kind);
    write_all(file, &kind, sizeof(kind));
    write_text(file, verdict.category);
    write_text(file, verdict.detail);
  }
  ::_exit(0);
}

/// A process that does some of the tasks, and what it says.
class Worker {
 public:
  Worker(size_t first, size_t last, double deadline_s,
         const std::function<Verdict(size_t)>& task)
      : deadline_s_(deadline_s) {
    std::array<int, 2> files{};
    if (::pipe(files.data()) != 0) throw std::runtime_error("no pipe");
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ < 0) throw std::runtime_error("no process");
    if (pid_ == 0) {
      ::close(files[0]);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      work(files[1], first, last, task);
    }
    ::close(files[1]);
    file_ = files[0];
  }
  ~Worker() {
    ::close(file_);
    if (!is_reaped_) ::kill(pid_, SIGKILL);
    if (!is_reaped_) ::waitpid(pid_, nullptr, 0);
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// The next verdict. If the child ends or is silent: a crash or a hang.
  Verdict next() {
    deadline_ =
        std::chrono::steady_clock::now() +
        std::chrono::microseconds(static_cast<int64_t>(deadline_s_ * 1e6));
    uint32_t kind = 0;
    Verdict verdict;
    if (read_all(&kind, sizeof(kind)) && read_text(verdict.category) &&
        read_text(verdict.detail)) {
      verdict.kind = static_cast<Verdict::Kind>(kind);
      return verdict;
    }
    is_broken_ = true;
    if (is_late_) {
      return {Verdict::Kind::kFinding, "hang",
              "no end within " + std::to_string(deadline_s_) + " s"};
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    is_reaped_ = true;
    return {Verdict::Kind::kFinding, "crash",
            WIFSIGNALED(status)
                ? std::string(::strsignal(WTERMSIG(status)))
                : "exit code " + std::to_string(WEXITSTATUS(status))};
  }
  bool is_broken() const { return is_broken_; }

 private:
  bool read_all(void* data, size_t size) {
    auto* at = static_cast<char*>(data);
    while (size > 0) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline_ - std::chrono::steady_clock::now());
      pollfd poller{.fd = file_, .events = POLLIN, .revents = 0};
      const int ready = ::poll(
          &poller, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) {
        is_late_ = true;
        return false;
      }
      const ssize_t done = ::read(file_, at, size);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) return false;
      at += done;
      size -= static_cast<size_t>(done);
    }
    return true;
  }
  bool read_text(std::string& text) {
    uint32_t size = 0;
    if (!read_all(&size, sizeof(size))) return false;
    text.resize(size);
    return read_all(text.data(), size);
  }

  double deadline_s_;
  std::chrono::steady_clock::time_point deadline_;
  pid_t pid_ = -1;
  int file_ = -1;
  bool is_late_ = false;
  bool is_broken_ = false;
  bool is_reaped_ = false;
};

}  // namespace

void run_isolated(size_t count, double deadline_s,
                  const std::function<Verdict(size_t)>& task,
                  const std::function<bool(size_t, const Verdict&)>& report,
                  size_t tasks_per_process) {
  size_t next = 0;
  while (next < count) {
    const size_t last = std::min(count, next + tasks_per_process);
    Worker worker(next, last, deadline_s, task);
    while (next < last && !worker.is_broken()) {
      const Verdict verdict = worker.next();
      if (!report(next++, verdict)) return;
    }
  }
}

}  // namespace lockstep::differential
