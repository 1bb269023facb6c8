#include "tests/cli/loaded_program.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/process.h"
#include "lockstep/cli/commands.h"
#include "tests/cli/program.h"

// These exist only in instrumented programs.
extern "C" {
[[gnu::weak]] void __sanitizer_set_death_callback(void (*callback)());
[[gnu::weak]] void __gcov_init();     // GCC
[[gnu::weak]] void llvm_gcov_init();  // Clang
}

namespace lockstep::loaded_program {
namespace {

// A request is a message: the number of arguments, the arguments, and the
// variables of the environment, each with a null character at its end. The file
// descriptors of stdout, stderr and the current folder are passed with it. The
// answer is a process id.
constexpr size_t kMaxRequestBytes = 128 << 10;
constexpr size_t kDescriptors = 3;

struct Request {
  std::vector<std::string> arguments;
  std::vector<std::string> variables;
  std::array<int, kDescriptors> fds;
};

int server = -1;  // the socket, in the process of the tests

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

void send(int socket, const Request& request) {
  std::string text = std::to_string(request.arguments.size()) + '\0';
  for (const auto& words : {request.arguments, request.variables}) {
    for (const auto& word : words) text += word + '\0';
  }
  if (text.size() > kMaxRequestBytes) {
    throw std::runtime_error("too many arguments and variables");
  }
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof request.fds)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* passed = CMSG_FIRSTHDR(&message);
  passed->cmsg_level = SOL_SOCKET;
  passed->cmsg_type = SCM_RIGHTS;
  passed->cmsg_len = CMSG_LEN(sizeof request.fds);
  std::memcpy(CMSG_DATA(passed), request.fds.data(), sizeof request.fds);
  if (::sendmsg(socket, &message, MSG_NOSIGNAL) < 0) fail("sendmsg");
}

// Returns false when the process of the tests has ended.
bool receive(int socket, Request& request) {
  std::string text(kMaxRequestBytes, '\0');
  iovec part{text.data(), text.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof request.fds)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t length = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* passed = CMSG_FIRSTHDR(&message);
  if (length <= 0 || passed == nullptr) return false;
  std::memcpy(request.fds.data(), CMSG_DATA(passed), sizeof request.fds);
  std::vector<std::string> words;
  for (size_t at = 0; at < static_cast<size_t>(length);) {
    words.emplace_back(text.c_str() + at);
    at += words.back().size() + 1;
  }
  const auto first = words.begin() + 1;
  const auto end = first + std::stol(words.front());
  request.arguments.assign(first, end);
  request.variables.assign(end, words.end());
  return true;
}

// When a process exits, LibTorch takes its tables apart for a tenth of a
// second. Programs that are started do that. Here, only sanitizers and coverage
// need the end of the process.
[[noreturn]] void end(int code) {
  const bool is_instrumented = &__sanitizer_set_death_callback != nullptr ||
                               &__gcov_init != nullptr ||
                               &llvm_gcov_init != nullptr;
  if (is_instrumented) std::exit(code);
  std::fflush(nullptr);
  std::_Exit(code);
}

[[noreturn]] void run(Request& request) {
  ::prctl(PR_SET_NAME, "lockstep");  // children_of() looks for this name
  ::dup2(request.fds[0], STDOUT_FILENO);
  ::dup2(request.fds[1], STDERR_FILENO);
  if (::fchdir(request.fds[2]) != 0) std::_Exit(127);
  for (const int fd : request.fds) ::close(fd);
  ::clearenv();
  for (auto& variable : request.variables) ::putenv(variable.data());
  set_own_program(LOCKSTEP_BINARY_DIR "/libexec/lockstep/lockstep");
  std::vector<char*> argv{const_cast<char*>(kProgram.c_str())};
  for (auto& argument : request.arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  end(cli::run_program(static_cast<int>(argv.size()) - 1, argv.data()));
}

// Forks the program so that it becomes a child of the process of the tests,
// which adopts the children of a child that ends.
pid_t fork_program(int socket, Request& request) {
  Pipe pipe = make_pipe();
  const pid_t between = ::fork();
  if (between == 0) {
    const pid_t program = ::fork();
    if (program == 0) {
      ::close(socket);
      pipe.read.close();
      pipe.write.close();
      run(request);
    }
    std::_Exit(::write(pipe.write.get(), &program, sizeof program) < 0);
  }
  pipe.write.close();
  pid_t program = -1;
  if (::read(pipe.read.get(), &program, sizeof program) <= 0) program = -1;
  ::waitpid(between, nullptr, 0);
  return program;
}

[[noreturn]] void serve(int socket) {
  for (Request request; receive(socket, request);) {
    const pid_t program = fork_program(socket, request);
    for (const int fd : request.fds) ::close(fd);
    if (::send(socket, &program, sizeof program, MSG_NOSIGNAL) < 0) break;
  }
  std::_Exit(0);
}

}  // namespace

void start_server() {
  namespace fs = std::filesystem;
  const auto threads = std::distance(fs::directory_iterator("/proc/self/task"),
                                     fs::directory_iterator());
  if (threads != 1) throw std::runtime_error("a library has started threads");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail("socketpair");
  const pid_t pid = ::fork();
  if (pid < 0) fail("fork");
  if (pid == 0) {
    ::close(ends[0]);
    serve(ends[1]);
  }
  ::close(ends[1]);
  server = ends[0];
}

bool can_run(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 7> kWithoutTorch{
      "run", "simulate", "split", "top", "data", "--version", "-V"};
  return server >= 0 && !arguments.empty() &&
         std::ranges::find(kWithoutTorch, arguments.front()) ==
             kWithoutTorch.end();
}

pid_t start(const std::vector<std::string>& arguments, int out, int err) {
  const FileDescriptor folder(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) fail("open .");
  Request request{
      .arguments = arguments, .variables = {}, .fds = {out, err, folder.get()}};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    request.variables.emplace_back(*variable);
  }
  send(server, request);
  pid_t program = -1;
  if (::recv(server, &program, sizeof program, 0) <= 0 || program < 0) {
    fail("the process that forks the program has failed");
  }
  return program;
}

}  // namespace lockstep::loaded_program
