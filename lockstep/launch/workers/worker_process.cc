#include "lockstep/launch/workers/worker_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {
namespace {

// All that the child needs, prepared before the fork. Between fork and exec,
// the child has no other threads, so it must not allocate or take a lock that
// one of them may hold.
struct Prepared {
  explicit Prepared(const WorkerPlan& plan)
      : program(plan.program.c_str()),
        out_fd(plan.out_fd),
        err_fd(plan.err_fd),
        is_pinned(!plan.cores.empty()),
        parent(::getpid()) {
    for (const auto& text : plan.arguments) {
      arguments.push_back(const_cast<char*>(text.c_str()));
    }
    arguments.push_back(nullptr);
    for (const auto& text : plan.environment) {
      environment.push_back(const_cast<char*>(text.c_str()));
    }
    environment.push_back(nullptr);
    CPU_ZERO(&cores);
    for (const int core : plan.cores) {
      if (core < CPU_SETSIZE) CPU_SET(static_cast<size_t>(core), &cores);
    }
    null_fd = FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    struct sigaction hangup {};
    ::sigaction(SIGHUP, nullptr, &hangup);
    keeps_nohup = hangup.sa_handler == SIG_IGN;
  }

  const char* program;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  cpu_set_t cores;
  int out_fd;
  int err_fd;
  bool is_pinned;
  bool keeps_nohup = false;
  pid_t parent;
  FileDescriptor null_fd;
};

void reset_signals(bool keeps_nohup) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    if (signal == SIGHUP && keeps_nohup) continue;
    ::sigaction(signal, &action, nullptr);  // fails for SIGKILL and SIGSTOP
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_program(const Prepared& prepared, int status_fd) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have died before that call.
  if (::getppid() != prepared.parent) ::_exit(127);
  ::setpgid(0, 0);
  reset_signals(prepared.keeps_nohup);
  if (prepared.is_pinned) {
    ::sched_setaffinity(0, sizeof prepared.cores, &prepared.cores);
  }
  const bool has_files = ::dup2(prepared.null_fd.get(), 0) >= 0 &&
                         ::dup2(prepared.out_fd, 1) >= 0 &&
                         ::dup2(prepared.err_fd, 2) >= 0;
  if (has_files) {
    // Close what some library opened without O_CLOEXEC.
    ::syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
    ::execve(prepared.program, prepared.arguments.data(),
             prepared.environment.data());
  }
  const int error = errno;
  [[maybe_unused]] const auto told = ::write(status_fd, &error, sizeof error);
  ::_exit(127);
}

[[noreturn]] void throw_start_error(const std::string& program, int error) {
  std::string fix;
  if (error == ENOEXEC) fix = "a script needs a first line like #!/bin/sh";
  if (error == ENOENT) fix = "its interpreter is missing: see its first line";
  if (error == EAGAIN) fix = "raise the limit of processes: ulimit -u";
  throw LaunchError({.code = ErrorCode::kProcessStart,
                     .what = "can't start the program '" + program + "'",
                     .got = std::strerror(error),
                     .fix = fix});
}

// The error of the exec, or 0: if it succeeds, the pipe is closed without a
// word.
int exec_error(const FileDescriptor& status) {
  int error = 0;
  ssize_t got = 0;
  do {
    got = ::read(status.get(), &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

}  // namespace

WorkerProcess::WorkerProcess(const WorkerPlan& plan) {
  const Prepared prepared(plan);
  Pipe status = make_pipe();
  pid_ = ::fork();
  if (pid_ == 0) run_program(prepared, status.write.get());
  if (pid_ < 0) throw_start_error(plan.program, errno);
  ::setpgid(pid_, pid_);  // parent and child both do it: either may be first
  status.write.close();
  if (const int error = exec_error(status.read); error != 0) {
    ::waitpid(pid_, nullptr, 0);
    throw_start_error(plan.program, error);
  }
  pidfd_ =
      FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0U)));
  if (!pidfd_.is_open()) {
    const int error = errno;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    throw LaunchError({.code = ErrorCode::kProcessStart,
                       .what = "can't watch a worker",
                       .expected = "Linux 5.3 or later",
                       .got = std::strerror(error)});
  }
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::move(other.pidfd_)),
      end_(other.end_) {}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  send(SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::optional<WorkerEnd> WorkerProcess::poll_end() {
  siginfo_t info{};
  // The process is not reaped here (WNOWAIT), but by the destructor: until then
  // no other program can get its number, which is also that of its group.
  constexpr int kFlags = WEXITED | WNOHANG | WNOWAIT;
  if (end_ || ::waitid(P_PID, static_cast<id_t>(pid_), &info, kFlags) != 0 ||
      info.si_pid != pid_) {
    return std::nullopt;
  }
  pidfd_.close();
  end_ = info.si_code == CLD_EXITED ? WorkerEnd{.exit_code = info.si_status}
                                    : WorkerEnd{.signal = info.si_status};
  return end_;
}

void WorkerProcess::send(int signal) const { ::kill(-pid_, signal); }

}  // namespace lockstep::launch
