#include "tests/base/fork_server.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {
namespace {

// A request is one message: the number of arguments, the arguments and the
// variables, each with a null character at its end. The file descriptors of
// stdout, stderr and the current folder are passed with it. The answer is a
// process id.
constexpr size_t kMaxRequestBytes = 128 << 10;

using Descriptors = std::array<int, 3>;

struct Received {
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  Descriptors fds{};
};

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

// A message whose one part is `text`, and which has room for descriptors.
struct Message {
  explicit Message(std::string& text) : part{text.data(), text.size()} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }
  iovec part;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(Descriptors))> control{};
  msghdr header{};
};

void send_request(int socket, const ForkServer::Request& request, int folder) {
  std::string text = std::to_string(request.arguments.size()) + '\0';
  for (const auto* words : {&request.arguments, &request.environment}) {
    for (const auto& word : *words) text += word + '\0';
  }
  if (text.size() > kMaxRequestBytes) {
    throw std::runtime_error("too many arguments and variables");
  }
  const Descriptors fds{request.out, request.err, folder};
  Message message(text);
  cmsghdr* const passed = CMSG_FIRSTHDR(&message.header);
  passed->cmsg_level = SOL_SOCKET;
  passed->cmsg_type = SCM_RIGHTS;
  passed->cmsg_len = CMSG_LEN(sizeof fds);
  std::memcpy(CMSG_DATA(passed), fds.data(), sizeof fds);
  if (::sendmsg(socket, &message.header, MSG_NOSIGNAL) < 0) fail("sendmsg");
}

// Returns nothing when the process that asks has ended.
std::optional<Received> receive_request(int socket) {
  std::string text(kMaxRequestBytes, '\0');
  Message message(text);
  const ssize_t length = ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const passed = CMSG_FIRSTHDR(&message.header);
  if (length <= 0 || passed == nullptr) return std::nullopt;
  Received request;
  std::memcpy(request.fds.data(), CMSG_DATA(passed), sizeof request.fds);
  std::vector<std::string> words;
  for (size_t at = 0; at < static_cast<size_t>(length);) {
    words.emplace_back(text.c_str() + at);
    at += words.back().size() + 1;
  }
  const auto first = words.begin() + 1;
  const auto last = first + std::stol(words.front());
  request.arguments.assign(first, last);
  request.environment.assign(last, words.end());
  return request;
}

// Ends the process. When a process exits, LibTorch takes its tables apart for a
// tenth of a second, which only sanitizers and coverage need.
[[noreturn]] void end(int code) {
  if (LOCKSTEP_IS_INSTRUMENTED != 0) std::exit(code);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);
}

[[noreturn]] void run(Received& request, const ForkServer::Main& main) {
  ::dup2(request.fds[0], STDOUT_FILENO);
  ::dup2(request.fds[1], STDERR_FILENO);
  if (::fchdir(request.fds[2]) != 0) std::_Exit(127);
  for (const int fd : request.fds) ::close(fd);
  ::clearenv();
  for (auto& variable : request.environment) ::putenv(variable.data());
  int code = 127;
  try {
    code = main(request.arguments);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
  }
  end(code);
}

// The process between the server and the new one ends at once. The new one then
// becomes a child of the process that asks, which adopts it.
pid_t fork_orphan(int socket, Received& request, const ForkServer::Main& main) {
  Pipe pipe = make_pipe();
  const pid_t between = ::fork();
  if (between == 0) {
    const pid_t orphan = ::fork();
    if (orphan == 0) {
      ::close(socket);
      pipe.read.close();
      pipe.write.close();
      run(request, main);
    }
    std::_Exit(::write(pipe.write.get(), &orphan, sizeof orphan) < 0);
  }
  pipe.write.close();
  pid_t orphan = -1;
  if (::read(pipe.read.get(), &orphan, sizeof orphan) <= 0) orphan = -1;
  ::waitpid(between, nullptr, 0);
  return orphan;
}

[[noreturn]] void serve(int socket, const ForkServer::Main& main) {
  while (auto request = receive_request(socket)) {
    const pid_t pid = fork_orphan(socket, *request, main);
    for (const int fd : request->fds) ::close(fd);
    if (::send(socket, &pid, sizeof pid, MSG_NOSIGNAL) < 0) break;
  }
  std::_Exit(0);
}

}  // namespace

ForkServer::ForkServer(Main main) {
  namespace fs = std::filesystem;
  const auto threads = std::distance(fs::directory_iterator("/proc/self/task"),
                                     fs::directory_iterator());
  if (threads != 1) throw std::runtime_error("a library has started threads");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail("socketpair");
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) {
    ::close(ends[0]);
    serve(ends[1], main);
  }
  ::close(ends[1]);
  socket_ = ends[0];
}

ForkServer::~ForkServer() {
  ::close(socket_);
  ::waitpid(pid_, nullptr, 0);
}

pid_t ForkServer::fork(const Request& request) const {
  const FileDescriptor folder(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) fail("open .");
  send_request(socket_, request, folder.get());
  pid_t pid = -1;
  if (::recv(socket_, &pid, sizeof pid, 0) <= 0 || pid < 0) {
    fail("the server that forks processes has failed");
  }
  return pid;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) variables.emplace_back(*at);
  return variables;
}

}  // namespace lockstep
