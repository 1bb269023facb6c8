#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/shm/mailbox.h"
#include "tests/comm/shm/ranks.h"

namespace lockstep::shm {

using Message = std::vector<std::byte>;

/// `bytes` of noise that `seed` decides.
Message noise(size_t bytes, uint32_t seed);

/// A rank's mailbox and group, whose barrier the tests use.
struct MailRank {
  Mailbox& mailbox;
  Group& group;
  int rank() const { return group.rank(); }
  int ranks() const { return group.ranks(); }

  /// Start an operation; the future gives the source or the error. The data
  /// must stay until then.
  std::future<int> send(int to, int tag, std::span<const std::byte> data);
  std::future<int> receive(int from, int tag, std::span<std::byte> data);
  std::future<int> receive_any(int tag, std::span<std::byte> data);
  void barrier();

  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

using MailTask = std::function<void(MailRank&)>;

/// As run_ranks(), with a mailbox for each rank.
std::vector<std::string> run_mail(Kind kind, int ranks, const MailTask& task);

/// A callback that sets what the future gives.
MailDone done_into(const std::shared_ptr<std::promise<int>>& promise);

}  // namespace lockstep::shm
