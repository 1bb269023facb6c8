#include "lockstep/base/child_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/process.h"
#include "lockstep/base/start_thread.h"

namespace lockstep {
namespace {

// Returns the files that `options.program` may mean, in the order of execvp().
std::vector<std::string> candidate_files(const ChildOptions& options) {
  const std::string& name = options.program;
  if (!options.searches_path || name.empty() ||
      name.find('/') != std::string::npos) {
    return {name};
  }
  const char* path = std::getenv("PATH");
  const std::string folders = path != nullptr ? path : "/bin:/usr/bin";
  std::vector<std::string> files;
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string folder = folders.substr(begin, end - begin);
    // An empty entry is the working folder.
    files.push_back(folder.empty() ? name : folder + "/" + name);
    begin = end + 1;
  }
  return files;
}

std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (const auto& text : strings) {
    result.push_back(const_cast<char*>(text.c_str()));
  }
  result.push_back(nullptr);
  return result;
}

// Everything that the child needs, prepared before the fork. Between fork and
// exec the child has only one thread. It must not allocate or take a lock that
// another thread of the parent may hold.
struct Prepared {
  explicit Prepared(const ChildOptions& its_options)
      : options(its_options),
        files(candidate_files(options)),
        arguments(pointers(options.arguments)),
        environment(pointers(options.environment)) {
    CPU_ZERO(&cores);
    for (const int core : options.cores) {
      if (core < CPU_SETSIZE) CPU_SET(static_cast<size_t>(core), &cores);
    }
    ::sigemptyset(&default_signals);
    for (const int signal : options.default_signals) {
      ::sigaddset(&default_signals, signal);
    }
  }

  const ChildOptions& options;
  std::vector<std::string> files;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  pid_t parent = ::getpid();
  cpu_set_t cores;
  sigset_t default_signals;
};

// Blocks all signals in this thread for as long as the object exists. Otherwise
// a handler of the parent could run in the child and write to the parent's
// pipes.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

void reset_signals(const sigset_t& default_signals) {
  struct sigaction by_default {};
  by_default.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction current {};
    // This fails for the signals that glibc keeps for itself.
    if (::sigaction(signal, nullptr, &current) != 0) continue;
    if (current.sa_handler == SIG_IGN &&
        ::sigismember(&default_signals, signal) != 1) {
      continue;
    }
    ::sigaction(signal, &by_default, nullptr);  // fails for SIGKILL, SIGSTOP
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// Sets stdin, stdout and stderr. If this process has closed its own, other
// descriptors may have their numbers. All are copied to higher numbers first,
// so that none is replaced before it is used.
bool set_standard_files(const ChildOptions& options) {
  const int in_fd = options.in_fd >= 0
                        ? options.in_fd
                        : ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::array<int, 3> found = {
      in_fd, options.out_fd >= 0 ? options.out_fd : STDOUT_FILENO,
      options.err_fd >= 0 ? options.err_fd : STDERR_FILENO};
  std::array<int, 3> copies{};
  for (size_t i = 0; i < found.size(); ++i) {
    copies[i] = ::fcntl(found[i], F_DUPFD_CLOEXEC, 3);
    if (copies[i] < 0) return false;
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    if (::dup2(copies[i], static_cast<int>(i)) < 0) return false;
  }
  return true;
}

// Tries the files in order, as execvp() does, but does not run a file of
// unknown format as a shell script. Returns the error.
int execute(const Prepared& prepared) {
  int last_error = ENOENT;
  bool is_denied = false;
  for (const std::string& file : prepared.files) {
    ::execve(file.c_str(), prepared.arguments.data(),
             prepared.environment.data());
    last_error = errno;
    is_denied = is_denied || last_error == EACCES;
    const bool may_be_elsewhere =
        last_error == EACCES || last_error == ENOENT || last_error == ESTALE ||
        last_error == ENOTDIR || last_error == ENODEV ||
        last_error == ETIMEDOUT;
    if (!may_be_elsewhere) return last_error;
  }
  return is_denied ? EACCES : last_error;
}

[[noreturn]] void run_program(const Prepared& prepared, int status_fd) {
  if (prepared.options.dies_with_thread) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before that call.
    if (::getppid() != prepared.parent) ::_exit(127);
  }
  ::setpgid(0, 0);
  reset_signals(prepared.default_signals);
  if (!prepared.options.cores.empty()) {
    ::sched_setaffinity(0, sizeof prepared.cores, &prepared.cores);
  }
  const int high_status_fd = ::fcntl(status_fd, F_DUPFD_CLOEXEC, 3);
  int error = 0;
  if (high_status_fd >= 0 && set_standard_files(prepared.options)) {
    // Close descriptors that a library opened without O_CLOEXEC.
    ::syscall(SYS_close_range, 3U, ~0U, 4U /* CLOSE_RANGE_CLOEXEC */);
    error = execute(prepared);
  } else {
    error = errno;
  }
  [[maybe_unused]] const auto written = ::write(
      high_status_fd >= 0 ? high_status_fd : status_fd, &error, sizeof error);
  ::_exit(127);
}

// Returns the error of the exec. Returns 0 if it succeeded: then the pipe was
// closed without a write.
int exec_error(const FileDescriptor& status) {
  int error = 0;
  ssize_t size = 0;
  do {
    size = ::read(status.get(), &error, sizeof error);
  } while (size < 0 && errno == EINTR);
  return size == sizeof error ? error : 0;
}

void reap(pid_t pid) {
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

/// Returns a descriptor that becomes readable when child `pid` has ended, for
/// systems without pidfd_open(). If that fails, it is not open, and errno says
/// why.
FileDescriptor event_at_end(pid_t pid) {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC));
  if (!event.is_open()) return {};
  const auto ended = std::make_shared<FileDescriptor>(
      ::fcntl(event.get(), F_DUPFD_CLOEXEC, 0));
  if (!ended->is_open()) return {};
  const auto wait = [pid, ended] {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT) !=
               0 &&
           errno == EINTR) {
    }
    ::eventfd_write(ended->get(), 1);
  };
  // The thread must not get this program's signals.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  bool has_started = true;
  try {
    start_thread("process", "the end of a child", wait).detach();
  } catch (const Error&) {
    has_started = false;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (has_started) return event;
  errno = EAGAIN;
  return {};
}

}  // namespace

ProcessStartError::ProcessStartError(const std::string& program, int error)
    : IoError({.code = ErrorCode::kProcessStart,
               .what = fmt::format("can't start {}: {}", program,
                                   std::strerror(error))}),
      error_(error) {}

ChildProcess::ChildProcess(const ChildOptions& options)
    : grace_s_(options.grace_s) {
  const Prepared prepared(options);
  Pipe status = make_pipe();
  int fork_error = 0;
  {
    const BlockedSignals blocked;
    // fork() copies the page tables, which takes milliseconds for each GB of
    // this process. vfork() does not, but its child runs in the parent's memory
    // and could change data of the parent and of the sanitizers. The processes
    // that start programs are small or rarely do so.
    pid_ = ::fork();
    if (pid_ == 0) run_program(prepared, status.write.get());
    fork_error = errno;
  }
  if (pid_ < 0) throw ProcessStartError(options.program, fork_error);
  ::setpgid(pid_, pid_);  // parent and child both do it; either may be first
  status.write.close();
  if (const int error = exec_error(status.read); error != 0) {
    reap(pid_);
    throw ProcessStartError(options.program, error);
  }
  watch(options.program);
}

void ChildProcess::watch(const std::string& name) {
  end_fd_ = open_pidfd(pid_);
  if (end_fd_.is_open()) return;
  int error = errno;
  if (error == ENOSYS) {
    end_fd_ = event_at_end(pid_);
    if (end_fd_.is_open()) return;
    error = errno;
  }
  if (error == ESRCH) {
    note_unknown_end();
    return;
  }
  ::kill(-pid_, SIGKILL);
  reap(pid_);
  throw IoError({.code = ErrorCode::kProcessStart,
                 .what = "can't watch the process of " + name,
                 .got = std::strerror(error)});
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      grace_s_(other.grace_s_),
      end_fd_(std::move(other.end_fd_)),
      end_(other.end_),
      is_reaped_(other.is_reaped_) {}

void ChildProcess::note_end(const siginfo_t& info) {
  end_fd_.close();
  end_ = info.si_code == CLD_EXITED ? ProcessEnd{.exit_code = info.si_status}
                                    : ProcessEnd{.signal = info.si_status};
}

// Marks the process as ended in an unknown way. If this process ignores
// SIGCHLD, the kernel reaps its children.
void ChildProcess::note_unknown_end() {
  end_fd_.close();
  end_ = ProcessEnd{.is_known = false};
  is_reaped_ = true;
}

const std::optional<ProcessEnd>& ChildProcess::poll_end() {
  if (end_ || pid_ < 0) return end_;
  siginfo_t info{};
  // The process is not reaped here (WNOWAIT) but after its group has ended.
  // Until then no other process can get its id, which is also the group's id.
  const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info,
                              WEXITED | WNOHANG | WNOWAIT);
  if (result != 0 && errno == ECHILD) {
    note_unknown_end();
  } else if (result == 0 && info.si_pid == pid_) {
    note_end(info);
  }
  return end_;
}

void ChildProcess::send(int signal) const {
  // The id of a reaped process may belong to another process.
  if (pid_ > 0 && !is_reaped_) ::kill(-pid_, signal);
}

void ChildProcess::end() {
  if (pid_ < 0) return;
  if (!poll_end() && grace_s_ > 0) {
    send(SIGTERM);
    const auto deadline = deadline_in(grace_s_);
    while (!poll_end() && wait_for(end_fd(), POLLIN, deadline)) {
    }
  }
  if (is_reaped_) return;
  // Even if the leader has ended, other processes of the group may live on.
  send(SIGKILL);
  siginfo_t info{};
  int result = 0;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED);
  } while (result != 0 && errno == EINTR);
  if (!end_) {
    if (result == 0) {
      note_end(info);
    } else {
      note_unknown_end();
    }
  }
  is_reaped_ = true;
}

}  // namespace lockstep
