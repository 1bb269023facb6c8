#include "lockstep/tools/collectives/pytorch_collectives.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/process.h"
#include "lockstep/store/socket_address.h"
#include "lockstep/tools/measurement/pytorch_peer.h"

namespace lockstep::tools {
namespace {

// Importing torch from a cold disk takes long.
constexpr double kStartTimeoutSeconds = 120;

// Both ends of a connection. Unlike a pipe, it can be written to without a
// signal when the other end is closed.
std::pair<FileDescriptor, FileDescriptor> make_socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw IoError({.code = ErrorCode::kProcessStart,
                   .what = "can't connect to a process",
                   .got = std::strerror(errno)});
  }
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

}  // namespace

PyTorchCollectives::PyTorchCollectives(const ProcessGroup& group)
    : timeout_s_(kStartTimeoutSeconds) {
  const PyTorchPeer peer = find_pytorch();
  if (!peer.missing.empty()) {
    throw Error("bench", {.code = ErrorCode::kNotInBuild,
                          .what = "can't time PyTorch",
                          .got = peer.missing});
  }
  const auto script = std::filesystem::path(peer.script).parent_path() /
                      "pytorch_collectives.py";
  auto [python, theirs] = make_socket_pair();
  process_.emplace(ChildOptions{
      .program = peer.python,
      .searches_path = true,
      .arguments = {peer.python, script.string()},
      .environment =
          merged_environment({{"RANK", std::to_string(group.rank())},
                              {"WORLD_SIZE", std::to_string(group.size())}}),
      .in_fd = theirs.get(),
      .out_fd = theirs.get(),
      .dies_with_thread = true});
  theirs.close();
  python_ = std::move(python);

  const std::string host = group.is_one_host() ? store::loopback_host()
                                               : read_environment().master_addr;
  std::string port;
  if (group.rank() == 0) {
    write(fmt::format("join {} 0", host));
    port = read();
  }
  port = group.all_gather_text(port).front();
  if (group.rank() != 0) write(fmt::format("join {} {}", host, port));
  if (const std::string answer = read(); answer != "joined") give_up(answer);
  timeout_s_ = static_cast<double>(group.timeout().count()) / 1e3;
}

double PyTorchCollectives::time(Collective collective, int64_t count,
                                at::ScalarType type, int64_t calls) {
  write(fmt::format("time {} {} {} {}", name_of(collective), count,
                    c10::getDtypeNames(type).first, calls));
  const std::string answer = read();
  const auto seconds = parse_number<double>(answer);
  if (!seconds || !(*seconds > 0)) give_up(answer);
  return *seconds;
}

void PyTorchCollectives::write(const std::string& line) {
  const std::string text = line + "\n";
  if (::send(python_.get(), text.data(), text.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(text.size())) {
    give_up("it ended");
  }
}

std::string PyTorchCollectives::read() {
  const auto deadline = deadline_in(timeout_s_);
  for (;;) {
    if (const size_t end = received_.find('\n'); end != std::string::npos) {
      std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (!wait_for(python_.get(), POLLIN, deadline)) {
      give_up(fmt::format("nothing within {} s", timeout_s_));
    }
    std::array<char, 256> bytes;
    const ssize_t got = ::recv(python_.get(), bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) give_up("it ended");
    received_.append(bytes.data(), static_cast<size_t>(got));
  }
}

void PyTorchCollectives::give_up(const std::string& got) {
  throw Error("bench",
              {.code = ErrorCode::kCollectiveFailed,
               .what = "PyTorch's process does not answer",
               .expected = "a time, or that it joined the other processes",
               .got = got,
               .fix = "look at its own output above; or leave out --pytorch"});
}

}  // namespace lockstep::tools
