#include "lockstep/control/spare.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <poll.h>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <system_error>
#include <unistd.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/stopwatch.h"

namespace lockstep::control {
namespace {

constexpr char kReady = 'r';
constexpr char kGo = 'g';
constexpr double kForkTimeoutS = 5;
constexpr int kAdoptionPollMs = 1;
// Descriptors of a message: the gate, stdout and stderr of the new process.
constexpr size_t kPassed = 3;

// A message has the cores ("0,1,"), then the variables ("NAME=value"), each
// with a zero byte at its end.
std::string text_of(const RankSetup& setup) {
  std::string text;
  for (const int core : setup.cores) text += std::to_string(core) + ",";
  text += '\0';
  for (const auto& [name, value] : setup.variables) {
    text += name + "=" + value + '\0';
  }
  return text;
}

// Takes the text up to the next `end` from the front of `text`.
std::string_view take(std::string_view& text, char end) {
  const std::string_view word = text.substr(0, text.find(end));
  text.remove_prefix(std::min(text.size(), word.size() + 1));
  return word;
}

// The union aligns the bytes as the kernel needs them.
union Control {
  cmsghdr header;
  std::array<char, CMSG_SPACE(kPassed * sizeof(int))> bytes;
};

bool send_message(int socket, const std::string& text,
                  const std::array<int, kPassed>& fds) {
  Control control{};
  iovec data{const_cast<char*>(text.data()), text.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* const passed = CMSG_FIRSTHDR(&message);
  passed->cmsg_level = SOL_SOCKET;
  passed->cmsg_type = SCM_RIGHTS;
  passed->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(passed), fds.data(), sizeof fds);
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(text.size());
}

struct Message {
  std::string text;
  std::array<FileDescriptor, kPassed> fds;
};

// Returns the next message, or nothing if the agent is gone.
std::optional<Message> receive_message(int socket) {
  ssize_t size = 0;
  do {  // the size of the next message, without taking it
    size = ::recv(socket, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  } while (size < 0 && errno == EINTR);
  if (size <= 0) return std::nullopt;
  Message result;
  result.text.resize(static_cast<size_t>(size));
  Control control{};
  iovec data{result.text.data(), result.text.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  if (::recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != size)
    return std::nullopt;
  const cmsghdr* const passed = CMSG_FIRSTHDR(&message);
  std::array<int, kPassed> fds{};
  if (passed == nullptr || passed->cmsg_len != CMSG_LEN(sizeof fds)) {
    return std::nullopt;
  }
  std::memcpy(fds.data(), CMSG_DATA(passed), sizeof fds);
  for (size_t i = 0; i < kPassed; ++i) result.fds[i] = FileDescriptor(fds[i]);
  return result;
}

// Waits for `fd` until the deadline. Returns whether it can be read.
bool wait_to_read(int fd, const Stopwatch& watch, double timeout_s) {
  for (;;) {
    const double left_s = timeout_s - watch.seconds();
    if (left_s <= 0) return false;
    pollfd ready{fd, POLLIN, 0};
    if (::poll(&ready, 1, static_cast<int>(left_s * 1000) + 1) > 0) return true;
  }
}

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "[launch] no spare worker: %s\n", why);
  std::fflush(stderr);
  ::_exit(kExitFailed);
}

bool has_other_threads() {
  std::error_code error;
  const std::filesystem::directory_iterator threads("/proc/self/task", error);
  return error || std::distance(begin(threads), end(threads)) != 1;
}

// Waits until the agent is the parent, which is as soon as the process between
// them has ended.
bool is_adopted(pid_t agent) {
  const Stopwatch watch;
  while (::getppid() != agent) {
    if (watch.seconds() > kForkTimeoutS) return false;
    ::poll(nullptr, 0, kAdoptionPollMs);
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  return ::getppid() == agent;  // it may have died before that call
}

// Pins this process, if the system allows it.
void run_on(std::string_view text) {
  std::vector<int> cores;
  while (!text.empty()) {
    const auto core = parse_number<int>(std::string(take(text, ',')));
    if (core) cores.push_back(*core);
  }
  if (cores.empty()) return;
  try {
    pin_thread(cores);
  } catch (const IoError&) {
  }
}

bool set_standard_files(const Message& message) {
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return ::dup2(nothing.get(), STDIN_FILENO) >= 0 &&
         ::dup2(message.fds[1].get(), STDOUT_FILENO) >= 0 &&
         ::dup2(message.fds[2].get(), STDERR_FILENO) >= 0;
}

// Makes this process the rank of `message`, when the agent agrees.
void become_rank(const Message& message, pid_t agent) {
  const int gate = message.fds[0].get();
  const pid_t pid = ::getpid();
  ::setpgid(0, 0);
  if (!is_adopted(agent) || !set_standard_files(message) ||
      ::send(gate, &pid, sizeof pid, MSG_NOSIGNAL) != sizeof pid) {
    ::_exit(kExitFailed);
  }
  std::string_view text = message.text;
  run_on(take(text, '\0'));
  while (!text.empty()) {
    std::string_view value = take(text, '\0');
    const std::string name(take(value, '='));
    ::setenv(name.c_str(), std::string(value).c_str(), 1);
  }
  ::unsetenv(kSpareVariable);
  char word = 0;
  if (::recv(gate, &word, 1, 0) != 1 || word != kGo) ::_exit(kExitFailed);
}

// Forks a process whose parent ends at once, so that the agent adopts it.
// Returns whether this process is the new one.
bool fork_orphan() {
  const pid_t between = ::fork();
  if (between == 0) {
    if (::fork() == 0) return true;
    ::_exit(0);
  }
  while (between > 0 && ::waitpid(between, nullptr, 0) < 0 && errno == EINTR) {
  }
  return false;
}

}  // namespace

SocketPair make_socket_pair() {
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) !=
      0) {
    throw IoError({.code = ErrorCode::kProcessStart,
                   .what = "can't make a socket",
                   .got = std::strerror(errno)});
  }
  return {.agent = FileDescriptor(fds[0]), .worker = FileDescriptor(fds[1])};
}

void ForkedRank::go() {
  ::send(gate_.get(), &kGo, 1, MSG_NOSIGNAL);
  gate_.close();
}

bool is_spare_ready(const FileDescriptor& socket) {
  char word = 0;
  return ::recv(socket.get(), &word, 1, MSG_DONTWAIT) == 1 && word == kReady;
}

std::optional<ForkedRank> fork_rank(const FileDescriptor& socket,
                                    const RankSetup& setup) {
  SocketPair gate = make_socket_pair();
  if (!send_message(socket.get(), text_of(setup),
                    {gate.worker.get(), setup.out_fd, setup.err_fd})) {
    return std::nullopt;
  }
  // Only processes at the other end keep it open now, so their end is noticed.
  gate.worker.close();
  pid_t pid = 0;
  if (!wait_to_read(gate.agent.get(), Stopwatch(), kForkTimeoutS) ||
      ::recv(gate.agent.get(), &pid, sizeof pid, MSG_DONTWAIT) != sizeof pid) {
    return std::nullopt;
  }
  return ForkedRank(pid, std::move(gate.agent));
}

void wait_as_spare() {
  const char* const text = std::getenv(kSpareVariable);
  if (text == nullptr) return;
  const pid_t agent = std::atoi(text);
  // If a script started the program, the script would miss the workers' ends.
  if (::getppid() != agent) {
    give_up("a script started the program; let it end with exec");
  }
  if (has_other_threads()) give_up("the program has threads before main()");
  std::fflush(nullptr);  // else each copy would write what is buffered
  ::send(STDIN_FILENO, &kReady, 1, MSG_NOSIGNAL);
  while (const auto message = receive_message(STDIN_FILENO)) {
    if (!fork_orphan()) continue;
    become_rank(*message, agent);
    return;
  }
  ::_exit(0);
}

}  // namespace lockstep::control
