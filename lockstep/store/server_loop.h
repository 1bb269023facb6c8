#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/store/keeper.h"
#include "lockstep/store/peer.h"
#include "lockstep/store/refusal_log.h"
#include "lockstep/store/server.h"

namespace lockstep::store {

// The thread of a server: takes connections, leads them through the handshake,
// answers requests, and closes who is late. One request of a connection is
// answered before the next is read, so that none can take more memory than a
// request and a reply.
class Server::Loop {
 public:
  Loop(const ServerOptions& options, std::vector<FileDescriptor> listeners);
  ~Loop();
  void begin_round(int round, int world_size);

 private:
  using Number = uint64_t;  // of a connection; they are never used again
  using Time = Peer::Time;

  void run();
  int timeout_ms(Time now) const;
  void accept_some(int listener, Time now);
  void close_oldest_stranger(const std::string& why);
  void on_event(Number number, uint32_t events, Time now);
  // All that is there. Throws CommError: the connection is to be closed.
  void read_requests(Number number, Peer& peer, Time now);
  void on_frame(Number number, Peer& peer, const std::string& body, Time now);
  void on_hello(Peer& peer, const std::string& body);
  void on_proof(Number number, Peer& peer, const std::string& body);
  void on_request(Number number, Peer& peer, const Request& request, Time now);
  // Those that wait, and may have got what they wait for.
  void wake_waiters();
  void end_wait(Number number, Peer& peer, const Reply& reply);
  void close_late(Time now);
  void close_stale_workers();
  // Writes what can be written, and has epoll watch for what comes next.
  void attend(Number number, Peer& peer);
  void refuse(Number number, const std::string& why);
  void close(Number number);

  const ServerOptions options_;
  std::vector<FileDescriptor> listeners_;
  FileDescriptor epoll_, stop_;
  // To be given up when there are no descriptors left: a connection can be
  // closed only after it was accepted.
  FileDescriptor spare_;

  std::mutex mutex_;  // of all below
  Keeper keeper_;
  Number next_number_ = 0;
  std::map<Number, std::unique_ptr<Peer>> peers_;
  std::set<Number> strangers_;  // the oldest first
  std::set<std::pair<Time, Number>> waiters_;
  bool is_will_done_ = false;  // those that wait don't know yet
  RefusalLog refusals_;
  std::thread thread_;
};

}  // namespace lockstep::store
