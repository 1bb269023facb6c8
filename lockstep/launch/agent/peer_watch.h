#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/rendezvous/job_store.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

/// News about the other nodes.
struct PeerNews {
  bool all_done = false;  ///< the workers of all nodes ended with success
  std::optional<Notice> notice;  ///< reason why all workers must end
};

/// Options for watching the other nodes.
struct PeerWatchOptions {
  double keep_alive_s = 15;
  /// Whether nodes may join and leave, so that the job can go on without a lost
  /// one.
  bool is_elastic = false;
  /// Whether this agent looks for new nodes that want to join.
  bool expects_nodes = false;
};

/// Exchanges heartbeats and notices with the agents of the other nodes. It uses
/// a separate thread, so that a store that does not answer can't keep the agent
/// from its workers. A failure, or the end of an agent, is known within half a
/// second. An agent that sends no heartbeat for keep_alive_s counts as lost.
class PeerWatch {
 public:
  PeerWatch(Rendezvous& rendezvous, const PeerWatchOptions& options);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// This descriptor is readable when there is news.
  int fd() const { return event_.get(); }
  PeerNews take_news();

  /// Both return immediately. The thread tells the other nodes.
  void announce_done();
  void announce_end(const Notice& notice);

 private:
  void watch();
  void exchange();
  bool are_all_done();
  void check_heartbeats();
  void check_members();
  void publish(const Notice& notice);

  Rendezvous& rendezvous_;  // its group does not change during a watch
  JobStore& store_;
  const PeerWatchOptions options_;
  FileDescriptor event_;

  std::mutex mutex_;  // guards all members below
  std::condition_variable wake_;
  bool is_stopped_ = false;
  bool is_done_ = false;
  std::optional<Notice> own_notice_;
  PeerNews news_;

  struct Heartbeat;
  std::vector<Heartbeat> heartbeats_;  // used by the thread only
  int64_t own_heartbeats_ = 0;
  bool has_told_done_ = false;
  std::thread thread_;
};

}  // namespace lockstep::launch
