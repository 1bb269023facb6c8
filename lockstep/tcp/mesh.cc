#include "lockstep/tcp/mesh.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <poll.h>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/event_loop.h"

namespace lockstep::tcp {

using Progress = Connection::Progress;

Mesh::Mesh(int rank, std::vector<store::SecureSocket> sockets,
           std::vector<std::string> names, Hosts hosts)
    : rank_(rank),
      hosts_(hosts),
      names_(std::move(names)),
      peers_(sockets.size()) {
  for (size_t r = 0; r < sockets.size(); ++r) {
    if (sockets[r].is_open()) {
      peers_[r].connection = Connection(std::move(sockets[r]));
    }
  }
}

void Mesh::check_usable() const {
  if (!is_broken_) return;
  const std::lock_guard lock(mutex_);
  throw CommError({.code = ErrorCode::kCollectiveFailed,
                   .what = fmt::format("{} calls {} in a group that failed "
                                       "before",
                                       name(rank_), header_.call.describe()),
                   .got = reason_,
                   .fix = "look at the first error; make a new ProcessGroup"});
}

void Mesh::begin(const transport::Call& call, Milliseconds timeout) {
  transport::check_root(call, rank_, ranks());
  ++header_.sequence;
  header_.call = call;
  timeout_ = timeout;
  check_usable();
  for (Peer& peer : peers_) {
    peer.has_sent_header = peer.has_awaited_header = false;
  }
}

void Mesh::send(int peer, std::span<const std::byte> bytes) {
  Peer& to = peers_[static_cast<size_t>(peer)];
  if (!to.has_sent_header) {
    to.has_sent_header = true;
    to.connection.queue_send(std::as_bytes(std::span(&header_, 1)));
    sent_bytes_ += static_cast<int64_t>(sizeof(header_));
  }
  to.connection.queue_send(bytes);
  sent_bytes_ += static_cast<int64_t>(bytes.size());
}

void Mesh::receive(int peer, std::span<std::byte> bytes,
                   std::function<void()> done) {
  Peer& from = peers_[static_cast<size_t>(peer)];
  if (!from.has_awaited_header) {
    from.has_awaited_header = true;
    from.connection.queue_receive(
        std::as_writable_bytes(std::span(&from.header, 1)),
        [this, peer] { check_header(peer); });
  }
  from.connection.queue_receive(bytes, std::move(done));
}

void Mesh::send_to_all(std::span<const std::byte> bytes) {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer != rank_) send(peer, bytes);
  }
}

void Mesh::check_header(int peer) {
  const Header& from = peers_[static_cast<size_t>(peer)].header;
  if (from.sequence == header_.sequence && from.call == header_.call) return;
  give_up({.code = ErrorCode::kCallsDiffer,
           .what = fmt::format("rank {} and rank {} called different "
                               "collectives",
                               std::min(rank_, peer), std::max(rank_, peer)),
           .got = fmt::format("rank {}: {} (its call {}); rank {}: {} (its "
                              "call {})",
                              rank_, header_.call.describe(), header_.sequence,
                              peer, from.call.describe(), from.sequence),
           .fix = "make every rank call the same ones in the same order"});
}

void Mesh::complete() {
  auto last_progress = Clock::now();
  for (;;) {
    bool is_done = true, has_moved = false;
    for (int r = 0; r < ranks(); ++r) {
      Connection& connection = peers_[static_cast<size_t>(r)].connection;
      const auto note = [&](Progress progress) {
        if (progress == Progress::kClosed) lose(r);
        has_moved = has_moved || progress == Progress::kSome;
      };
      if (connection.has_receives()) {
        is_done = false;
        if (!connection.is_drained()) note(connection.receive_some());
      }
      if (connection.has_sends()) {
        is_done = false;
        if (!connection.is_full()) note(connection.send_some());
      }
    }
    if (is_done) return;
    if (has_moved) {
      last_progress = Clock::now();
    } else {
      wait_until(last_progress + timeout_);
    }
  }
}

// Calls poll() instead of an EventLoop: this is the inner loop of a collective,
// which waits for other connections and events each time.
void Mesh::wait_until(Clock::time_point deadline) {
  polled_.clear();
  polled_ranks_.clear();
  for (int r = 0; r < ranks(); ++r) {
    const Connection& connection = peers_[static_cast<size_t>(r)].connection;
    short events = 0;
    if (connection.has_receives()) events |= POLLIN;
    if (connection.has_sends()) events |= POLLOUT;
    if (events == 0) continue;
    polled_.push_back({.fd = connection.fd(), .events = events, .revents = 0});
    polled_ranks_.push_back(r);
  }
  const int ready =
      ::poll(polled_.data(), polled_.size(), poll_timeout_ms(deadline));
  if (ready < 0 && errno != EINTR) {
    give_up({.code = ErrorCode::kCollectiveFailed,
             .what = fmt::format("{} can't wait for other ranks", name(rank_)),
             .got = std::strerror(errno)});
  }
  for (size_t i = 0; i < polled_.size() && ready > 0; ++i) {
    peers_[static_cast<size_t>(polled_ranks_[i])].connection.set_ready(
        polled_[i].revents);
  }
  if (ready == 0 && Clock::now() >= deadline) time_out();
}

void Mesh::time_out() {
  std::vector<std::string> awaited;
  for (int r = 0; r < ranks(); ++r) {
    const Connection& connection = peers_[static_cast<size_t>(r)].connection;
    if (connection.has_receives() || connection.has_sends()) {
      awaited.push_back(name(r));
    }
  }
  // A late rank has perhaps all of this rank's bytes. It fails too, because it
  // can't send its own.
  give_up({.code = ErrorCode::kCollectiveFailed,
           .what = fmt::format("{} timed out in {}", name(rank_),
                               header_.call.describe()),
           .expected = fmt::format("bytes from or for {} within {} s",
                                   fmt::join(awaited, ", "),
                                   static_cast<double>(timeout_.count()) / 1e3),
           .got = "none",
           .fix = "look at the output of that rank: it stalled, or called "
                  "something else; if it only needs longer, raise the "
                  "timeout"},
          &Connection::reset);
}

void Mesh::lose(int peer) {
  if (is_broken_) check_usable();  // this rank's abort() closed it
  give_up({.code = ErrorCode::kCollectiveFailed,
           .what = fmt::format("{} failed in {}: {} is gone", name(rank_),
                               header_.call.describe(), name(peer)),
           .expected = "a connection to every rank",
           .got = "the other end closed it",
           .fix = "look at the output of that rank: it ended, gave up after an "
                  "error of its own, or called fewer collectives. A backward() "
                  "of DistributedDataParallel is one, so if the ranks have "
                  "different numbers of batches, run the loop in its join()"});
}

void Mesh::give_up(const Problem& problem, EndConnection end) {
  const CommError error(problem);
  abort(text_of(error), end);
  for (Peer& peer : peers_) peer.connection.clear();
  throw error;
}

void Mesh::abort(const std::string& reason, EndConnection end) noexcept {
  if (is_broken_.exchange(true)) return;
  try {
    const std::lock_guard lock(mutex_);
    reason_ = reason;
  } catch (const std::exception&) {
    // The error then does not include the reason.
  }
  for (Peer& peer : peers_) (peer.connection.*end)();
}

std::optional<std::string> Mesh::end_of(int rank) const {
  const Connection& connection = peers_[static_cast<size_t>(rank)].connection;
  if (wait_for(connection.fd(), POLLRDHUP, /*deadline=*/{})) {
    return name(rank) + " ended or left the group";
  }
  return std::nullopt;
}

std::string Mesh::state_of(int rank) const {
  return end_of(rank).value_or(name(rank) + " is connected");
}

std::span<std::byte> Mesh::scratch(size_t bytes) {
  constexpr size_t kLine = 64;
  if (scratch_.size() < bytes + kLine) scratch_.resize(bytes + kLine);
  void* begin = scratch_.data();
  size_t space = scratch_.size();
  return {static_cast<std::byte*>(std::align(kLine, bytes, begin, space)),
          bytes};
}

}  // namespace lockstep::tcp
