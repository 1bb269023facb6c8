#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/store/key.h"
#include "lockstep/tcp/tls.h"

namespace lockstep::tcp {

/// Where the other ranks of a group find this one, until all are connected.
///
/// Each rank listens, tells the others its announcement (by the job's store,
/// which only the job's ranks can read), and connects to the ranks below it.
/// The announcement holds a random key. Who connects proves with it that it has
/// read the announcement, and gets a proof in return, so nobody else can take a
/// rank's place. What is sent afterwards is encrypted if the environment asks
/// for it (Tls), and else neither encrypted nor signed.
class Listener {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Listens at `host`, or at the addresses of the network interface
  /// `interface` if one is named. Throws CommError.
  Listener(const std::string& host, const std::string& interface);

  /// "ADDRESS PORT KEY"
  std::string announcement() const;

  /// A socket to each other rank, by rank; none for this one.
  /// `announcements` are those of all ranks. `is_over` is asked now and then
  /// whether to give up. Throws CommError naming the ranks that did not come
  /// before `deadline`, InvalidArgument for an environment that asks for TLS
  /// in a wrong way.
  std::vector<Socket> connect(int rank,
                              std::span<const std::string> announcements,
                              Time deadline,
                              const std::function<bool()>& is_over);

 private:
  FileDescriptor socket_;
  store::Digest key_;
};

}  // namespace lockstep::tcp
