#include "lockstep/launch/agent/peer_watch.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <sys/eventfd.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/launch/rendezvous/membership.h"

namespace lockstep::launch {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(200);

std::string heartbeat_key(size_t node_rank) {
  return fmt::format("beat/{}", node_rank);
}

std::string done_key(size_t node_rank) {
  return fmt::format("done/{}", node_rank);
}

}  // namespace

// The last heartbeat count of a node's agent, and the time since it changed.
struct PeerWatch::Heartbeat {
  std::string count;
  Stopwatch since;
};

PeerWatch::PeerWatch(Rendezvous& rendezvous, const PeerWatchOptions& options)
    : rendezvous_(rendezvous),
      store_(rendezvous.store),
      options_(options),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      heartbeats_(rendezvous.group.nodes.size()),
      thread_([this] { watch(); }) {}

PeerWatch::~PeerWatch() {
  {
    const std::lock_guard lock(mutex_);
    is_stopped_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

PeerNews PeerWatch::take_news() {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return news_;
}

void PeerWatch::announce_done() {
  const std::lock_guard lock(mutex_);
  is_done_ = true;
  wake_.notify_all();
}

void PeerWatch::announce_end(const Notice& notice) {
  const std::lock_guard lock(mutex_);
  if (!own_notice_) own_notice_ = notice;
  wake_.notify_all();
}

void PeerWatch::watch() {
  for (;;) {
    std::optional<Notice> failure;
    try {
      exchange();
    } catch (const CutOff& error) {
      failure =
          Notice{.why = std::string(error.text()), .exit_code = kExitPreempted};
    } catch (const LaunchError& error) {
      failure = Notice{.why = std::string(error.text())};
    }
    std::unique_lock lock(mutex_);
    if (failure) news_.notice = failure;
    if (news_.notice || news_.all_done) {
      const uint64_t one = 1;
      [[maybe_unused]] const auto put = ::write(event_.get(), &one, sizeof one);
      return;
    }
    if (is_stopped_) return;
    wake_.wait_for(lock, kInterval);
  }
}

void PeerWatch::exchange() {
  std::optional<Notice> own_notice;
  bool is_done = false;
  {
    const std::lock_guard lock(mutex_);
    own_notice = own_notice_;
    is_done = is_done_;
  }
  std::optional<std::string> failure;
  if (own_notice) {
    failure = store_.claim("failed", to_text(*own_notice));
  } else {
    failure = store_.get("failed");
  }
  if (is_done && !has_told_done_) {
    store_.set(done_key(static_cast<size_t>(rendezvous_.group.node_rank)), "1");
    has_told_done_ = true;
  }
  const bool all_done = are_all_done();
  {
    const std::lock_guard lock(mutex_);
    if (failure) news_.notice = notice_from_text(*failure);
    news_.all_done = all_done;
  }
  if (failure || all_done) return;
  check_heartbeats();
  check_members();
}

bool PeerWatch::are_all_done() {
  std::vector<std::string> all;
  for (size_t node = 0; node < heartbeats_.size(); ++node) {
    all.push_back(done_key(node));
  }
  return store_.has_all(all);
}

void PeerWatch::check_heartbeats() {
  const auto self = static_cast<size_t>(rendezvous_.group.node_rank);
  store_.set(heartbeat_key(self), std::to_string(++own_heartbeats_));
  for (size_t node = 0; node < heartbeats_.size(); ++node) {
    if (node == self) continue;
    Heartbeat& heartbeat = heartbeats_[node];
    const auto count = store_.get(heartbeat_key(node)).value_or("");
    if (count != heartbeat.count) {
      heartbeat.count = count;
      heartbeat.since.restart();
    }
    std::string how;
    if (store_.has_all({rendezvous_.gone_key(static_cast<int>(node))})) {
      how = "has ended without a notice";
    } else if (heartbeat.since.seconds() > options_.keep_alive_s) {
      how = fmt::format(
          "sent no heartbeat for {:g} s: its agent or the network has failed",
          options_.keep_alive_s);
    }
    if (how.empty()) continue;
    // An agent that has seen that all nodes are done may have ended already.
    if (are_all_done()) return;
    publish({.why = fmt::format("node {}, {}, {}", node,
                                rendezvous_.group.nodes[node].text(), how),
             .may_restart = options_.is_elastic,
             .lost_node = static_cast<int>(node),
             .exit_code = kExitPreempted});
    return;
  }
}

void PeerWatch::check_members() {
  if (!options_.expects_nodes) return;
  const auto members = store_.add(rendezvous_.key(kMembersKey), 0);
  if (members > rendezvous_.known_members) {
    publish({.why = "another node has come",
             .may_restart = true,
             .is_fault = false});
  }
}

// The notice that is first in the store counts for all nodes.
void PeerWatch::publish(const Notice& notice) {
  const auto first = notice_from_text(store_.claim("failed", to_text(notice)));
  const std::lock_guard lock(mutex_);
  news_.notice = first;
}

}  // namespace lockstep::launch
