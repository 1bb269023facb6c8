#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/agent/notice.h"
#include "lockstep/launch/rendezvous/job_store.h"
#include "lockstep/launch/rendezvous/rendezvous.h"

namespace lockstep::launch {

/// What is known of the other nodes.
struct PeerNews {
  bool all_done = false;         ///< every node's workers ended well
  std::optional<Notice> notice;  ///< why all workers are to end
};

/// How a node watches the others.
struct PeerWatchOptions {
  double keep_alive_s = 15;
  /// Nodes come and go: the job may go on without one that is lost.
  bool is_elastic = false;
  /// This agent looks out for nodes that come.
  bool expects_nodes = false;
};

/// Keeps in touch with the agents of the other nodes, from a thread of its
/// own: a store that does not answer must not keep the agent from its workers.
/// Hears of a failure, and of an agent that has ended, within half a second;
/// one that says nothing for keep_alive_s is lost.
class PeerWatch {
 public:
  PeerWatch(Rendezvous& rendezvous, const PeerWatchOptions& options);
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  /// Readable when there is news.
  int fd() const { return event_.get(); }
  PeerNews take_news();

  /// Tell the others, soon.
  void announce_done();
  void announce_end(const Notice& notice);

 private:
  void watch();
  void exchange();
  bool are_all_done();
  void check_heartbeats();
  void check_members();
  void publish(const Notice& notice);

  Rendezvous& rendezvous_;  // of which nobody changes the group meanwhile
  JobStore& store_;
  const PeerWatchOptions options_;
  FileDescriptor event_;

  std::mutex mutex_;  // of all below
  std::condition_variable wake_;
  bool is_stopped_ = false;
  bool is_done_ = false;
  std::optional<Notice> own_notice_;
  PeerNews news_;

  struct Heartbeat;
  std::vector<Heartbeat> heartbeats_;  // the thread's own
  int64_t own_heartbeats_ = 0;
  bool has_told_done_ = false;
  std::thread thread_;
};

}  // namespace lockstep::launch
