#include "lockstep/tcp/door.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"

namespace lockstep::tcp {
namespace {

struct LocalAddress {
  LocalAddress(const LocalPlace& place, int rank) {
    // A name that begins with a zero byte is not in the file system.
    const std::string name =
        fmt::format("lockstep/{:02x}/{}", fmt::join(place.name, ""), rank);
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path + 1);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                    name.size());
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&address);
  }

  sockaddr_un address{};
  socklen_t length = 0;
};

FileDescriptor local_socket() {
  FileDescriptor socket(
      ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) {
    throw OutOfResources("comm", "can't make a socket for messages", errno);
  }
  return socket;
}

}  // namespace

LocalPlace LocalPlace::random() {
  return {.name = store::random_token(), .key = store::Key::random().bytes()};
}

Door local_door(const LocalPlace& place, int rank, int ranks) {
  Door door;
  door.listening = local_socket();
  const LocalAddress own(place, rank);
  if (::bind(door.listening.get(), own.get(), own.length) != 0 ||
      ::listen(door.listening.get(), SOMAXCONN) != 0) {
    throw CommError(
        {.code = ErrorCode::kCannotListen,
         .what = fmt::format("rank {} can't listen for messages", rank),
         .got = std::strerror(errno),
         .fix = "use another network namespace, or the backend "
                "tcp"});
  }
  door.connect = [place](int peer) {
    const LocalAddress to(place, peer);
    FileDescriptor socket = local_socket();
    if (::connect(socket.get(), to.get(), to.length) != 0) socket.close();
    return socket;
  };
  door.keys.assign(static_cast<size_t>(ranks), store::Key(place.key));
  return door;
}

}  // namespace lockstep::tcp
