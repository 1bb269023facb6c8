#include "tests/tcp/messages.h"

#include <random>
#include <stdexcept>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "lockstep/tcp/listener.h"

namespace lockstep::tcp {

using transport::Operation;

Bytes noise(size_t bytes, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  Bytes result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random() >> 8);
  return result;
}

MessageDone Awaited::done() const {
  return [promise = promise_](std::exception_ptr error, int source) {
    Outcome outcome{source, {}};
    try {
      if (error) std::rethrow_exception(std::move(error));
    } catch (const std::exception& caught) {
      outcome.error = caught.what();
    }
    promise->set_value(std::move(outcome));
  };
}

int Awaited::get() {
  const Outcome outcome = promise_->get_future().get();
  if (!outcome.error.empty()) throw std::runtime_error(outcome.error);
  return outcome.source;
}

std::string Awaited::error() {
  const Outcome outcome = promise_->get_future().get();
  return outcome.error.empty() ? "no error" : outcome.error;
}

Doors doors_for(Way way, int ranks) {
  if (way == Way::kLocal) {
    return [place = LocalPlace::random(), ranks](int rank, Kind) {
      return local_door(place, rank, ranks);
    };
  }
  const Data data = way == Way::kTcp ? Data::kPlain : Data::kEncrypted;
  // Before any rank is forked, so that all of them know the addresses.
  auto listeners = std::make_shared<std::vector<Listener>>();
  std::vector<std::string> announcements;
  for (int rank = 0; rank < ranks; ++rank) {
    listeners->emplace_back("127.0.0.1", "", data);
    announcements.push_back(listeners->back().announcement());
  }
  return [listeners, announcements](int rank, Kind kind) {
    Door door =
        std::move((*listeners)[static_cast<size_t>(rank)]).door(announcements);
    // Otherwise the end of a process would not close its socket.
    if (kind == Kind::kProcesses) listeners->clear();
    return door;
  };
}

Awaited ChannelRank::send(int to, int tag, std::span<const std::byte> data) {
  Awaited result;
  channel.send(to, tag, data, timeout, result.done());
  return result;
}

Awaited ChannelRank::receive(int from, int tag, std::span<std::byte> data) {
  Awaited result;
  channel.receive(from, tag, data, timeout, result.done());
  return result;
}

void ChannelRank::barrier() {
  group.begin({.operation = Operation::kBarrier}, group.timeout());
  group.sync();
}

namespace {

/// Runs the task as the rank of `group`. If it fails, the other ranks are told.
void run_as(shm::Group& group, Door door, const ChannelTask& task) {
  const GroupPeers peers(group);
  Channel channel(group.rank(), group.ranks(), std::move(door), peers);
  ChannelRank self{channel, group};
  try {
    task(self);
  } catch (const std::exception& error) {
    group.abort(error.what());
    channel.abort(error.what());
    throw;
  }
}

}  // namespace

std::vector<std::string> run_channels(Way way, Kind kind, int ranks,
                                      const ChannelTask& task) {
  const Doors doors = doors_for(way, ranks);
  return shm::run_ranks(kind, ranks, [&](shm::Group& group) {
    run_as(group, doors(group.rank(), kind), task);
  });
}

void ChannelTest::on_all(const ChannelTask& task) {
  const auto [way, kind, ranks] = GetParam();
  for (const auto& message : run_channels(way, kind, ranks, task)) {
    EXPECT_EQ(message, "");
  }
}

std::string WayName::text_of(Way way) {
  return way == Way::kLocal ? "Local" : way == Way::kTcp ? "Tcp" : "Encrypted";
}
std::string WayName::text_of(Kind kind) {
  return kind == Kind::kThreads ? "Threads" : "Processes";
}
std::string WayName::text_of(size_t number) { return std::to_string(number); }

TwoRanks::TwoRanks(Way way, const ChannelTask& task)
    : doors_(doors_for(way, 2)),
      process_([&] {
        shm::Group group(shm::Segment::open(segment_->address()), 1, 2,
                         std::chrono::seconds(60));
        run_as(group, doors_(1, Kind::kProcesses), [&](ChannelRank& rank_1) {
          rank_1.barrier();
          task(rank_1);
        });
      }),
      group_(segment_, 0, 2, std::chrono::seconds(60)),
      peers_(group_),
      channel_(0, 2, doors_(0, Kind::kProcesses), peers_),
      self{channel_, group_} {
  self.barrier();
}

void expect_parts(const std::string& text,
                  const std::vector<std::string>& parts) {
  for (const auto& part : parts) {
    EXPECT_NE(text.find(part), std::string::npos)
        << "no '" << part << "' in: " << text;
  }
}

void sleep_on(ChannelRank& /*self*/) {
  for (;;) ::pause();
}

}  // namespace lockstep::tcp
