#include "lockstep/tcp/strangers.h"

#include <cerrno>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>

namespace lockstep::tcp {
namespace {

// Limit on strangers. The other ranks of the group come on top.
constexpr size_t kMaxStrangers = 64;
// Accepts only a few at a time, so that older ones have several turns before
// they are closed.
constexpr int kAcceptedATurn = 16;
// Pause after the process had no descriptor left. The listening socket would be
// found ready again at once.
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{100};

}  // namespace

Strangers::Strangers(EventLoop& loop, Address address, Join join)
    : loop_(loop), address_(std::move(address)), join_(std::move(join)) {
  if (address_.listening < 0) return;
  loop_.add(address_.listening, EPOLLIN, [this](uint32_t) { accept(); });
}

void Strangers::close() {
  if (address_.listening >= 0) {
    loop_.remove(std::exchange(address_.listening, -1));
  }
  while (!strangers_.empty()) drop(strangers_.begin());
}

void Strangers::accept() {
  for (int i = 0; i < kAcceptedATurn; ++i) {
    FileDescriptor socket(::accept4(address_.listening, nullptr, nullptr,
                                    SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno != EMFILE && errno != ENFILE) return;
      loop_.change(address_.listening, 0);
      loop_.at(EventLoop::Time::clock::now() + kPauseWithoutDescriptors,
               [this] {
                 if (address_.listening < 0) return;
                 loop_.change(address_.listening, EPOLLIN);
               });
      return;
    }
    if (strangers_.size() >=
        kMaxStrangers + static_cast<size_t>(address_.ranks)) {
      drop(strangers_.begin());
    }
    const int fd = socket.get();
    const Place stranger = strangers_.insert(
        strangers_.end(), {.handshake = Handshake::with_stranger(
                               address_.purpose, address_.rank, address_.ranks,
                               std::move(socket), address_.key, address_.data),
                           .since = EventLoop::Time::clock::now()});
    loop_.add(fd, EPOLLIN, [this, stranger](uint32_t) { advance(stranger); });
    watch_deadlines();
  }
}

void Strangers::advance(Place stranger) {
  Handshake& handshake = stranger->handshake;
  switch (handshake.advance()) {
    case Handshake::Outcome::kDone: {
      const int peer = *handshake.peer();
      loop_.remove(handshake.fd());
      store::SecureSocket socket = handshake.take();
      strangers_.erase(stranger);
      return join_(peer, std::move(socket));
    }
    case Handshake::Outcome::kClosed:
    case Handshake::Outcome::kRefused:
      return drop(stranger);
    default:
      return loop_.change(handshake.fd(), handshake.events());
  }
}

void Strangers::drop(Place stranger) {
  loop_.remove(stranger->handshake.fd());
  strangers_.erase(stranger);
}

// Closes each stranger when its time is over.
void Strangers::watch_deadlines() {
  if (!address_.time || is_watching_deadlines_ || strangers_.empty()) return;
  is_watching_deadlines_ = true;
  loop_.at(strangers_.front().since + *address_.time, [this] {
    is_watching_deadlines_ = false;
    const auto now = EventLoop::Time::clock::now();
    while (!strangers_.empty() &&
           strangers_.front().since + *address_.time <= now) {
      drop(strangers_.begin());
    }
    watch_deadlines();
  });
}

}  // namespace lockstep::tcp
