// Tests the behaviour that others expect of a c10d backend: errors, names, an
// unchanged store.

#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group_impl.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

ProcessGroupOptions options_of(
    const std::string& backend,
    milliseconds timeout = std::chrono::seconds(100)) {
  ProcessGroupOptions options;
  options.backend(backend);
  options.timeout(timeout);
  return options;
}

struct Caught {
  std::optional<ErrorCode> code;  ///< of an error of Lockstep
  std::string message;            ///< "": nothing was thrown
  bool names(const std::string& name) const {
    return message.find(name) != std::string::npos;
  }
};

template <typename Act>
Caught caught_from(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  } catch (const std::exception& error) {
    return {std::nullopt, error.what()};
  }
  return {};
}

class C10d : public testing::TestWithParam<std::string> {};

TEST_P(C10d, ATimeOutSaysThatItTimedOut) {
  // A rank that waits until the other has given up.
  std::promise<void> given_up;
  const auto end = given_up.get_future().share();
  spawn(
      2,
      [&](const ProcessGroup& world) {
        world.barrier();
        if (world.rank() == 1) {
          end.wait_for(std::chrono::seconds(60));
          return;
        }
        Tensors tensors{torch::ones({3})};
        const Caught caught = caught_from([&] {
          c10d::AllreduceOptions options;
          options.timeout = milliseconds(200);
          world.backend()->allreduce(tensors, options)->wait();
        });
        given_up.set_value();
        // c10d's users look for these words.
        require(caught.code == ErrorCode::kCollectiveFailed &&
                    caught.names("timed out"),
                "it says: " + caught.message);
      },
      options_of(GetParam()));
}

// A rank that has all data of the others, but comes after one of them has timed
// out, would go on with a result that no other rank has.
TEST_P(C10d, ALateRankFailsWithTheOthers) {
  using Call = std::function<c10::intrusive_ptr<c10d::Work>(
      c10d::Backend&, int ranks, milliseconds timeout)>;
  const auto tensors_of = [](int64_t count, int64_t elements) {
    Tensors tensors;
    for (int64_t i = 0; i < count; ++i)
      tensors.push_back(torch::ones(elements));
    return tensors;
  };
  const auto all_reduce = [&](int64_t elements) -> Call {
    return [=](c10d::Backend& backend, int, milliseconds timeout) {
      Tensors tensors{torch::ones(elements)};
      c10d::AllreduceOptions options;
      options.timeout = timeout;
      return backend.allreduce(tensors, options);
    };
  };
  const std::map<std::string, Call> calls{
      {"barrier",
       [](c10d::Backend& backend, int, milliseconds timeout) {
         c10d::BarrierOptions options;
         options.timeout = timeout;
         return backend.barrier(options);
       }},
      {"small all_reduce", all_reduce(3)},
      {"large all_reduce", all_reduce(1 << 20)},
      {"all_gather",
       [=](c10d::Backend& backend, int ranks, milliseconds timeout) {
         std::vector<Tensors> outputs{tensors_of(ranks, 100)};
         Tensors inputs{torch::ones(100)};
         c10d::AllgatherOptions options;
         options.timeout = timeout;
         return backend.allgather(outputs, inputs, options);
       }},
      {"reduce_scatter",
       [=](c10d::Backend& backend, int ranks, milliseconds timeout) {
         Tensors outputs{torch::ones(100)};
         std::vector<Tensors> inputs{tensors_of(ranks, 100)};
         c10d::ReduceScatterOptions options;
         options.timeout = timeout;
         return backend.reduce_scatter(outputs, inputs, options);
       }},
      {"all_to_all",
       [=](c10d::Backend& backend, int ranks, milliseconds timeout) {
         Tensors outputs = tensors_of(ranks, 100);
         Tensors inputs = tensors_of(ranks, 100);
         c10d::AllToAllOptions options;
         options.timeout = timeout;
         return backend.alltoall(outputs, inputs, options);
       }},
      {"broadcast from the late rank",
       [](c10d::Backend& backend, int ranks, milliseconds timeout) {
         Tensors tensors{torch::ones(100)};
         c10d::BroadcastOptions options;
         options.rootRank = ranks - 1;
         options.timeout = timeout;
         return backend.broadcast(tensors, options);
       }},
      {"reduce to another rank",
       [](c10d::Backend& backend, int, milliseconds timeout) {
         Tensors tensors{torch::ones(100)};
         c10d::ReduceOptions options;
         options.timeout = timeout;
         return backend.reduce(tensors, options);
       }},
  };
  for (const auto& each : calls) {
    const std::string& name = each.first;
    const Call& call = each.second;
    for (const int ranks : {2, 3}) {
      std::promise<void> given_up;
      const auto end = given_up.get_future().share();
      spawn(
          ranks,
          [&](const ProcessGroup& world) {
            world.barrier();
            const bool is_late = world.rank() == ranks - 1;
            if (is_late) end.wait_for(std::chrono::seconds(60));
            const Caught caught = caught_from([&] {
              call(*world.backend(), ranks,
                   milliseconds(world.rank() == 0 ? 200 : 60'000))
                  ->wait();
            });
            if (world.rank() == 0) given_up.set_value();
            // A rank that neither receives nor sums has nothing to wait for.
            if (world.rank() != 0 && !is_late) return;
            require(caught.code == ErrorCode::kCollectiveFailed,
                    fmt::format("{}, rank {} of {}: {}", name, world.rank(),
                                ranks, caught.message));
          },
          options_of(GetParam()));
    }
  }
}

TEST_P(C10d, AMonitoredBarrierNamesAllThatDoNotCome) {
  std::promise<void> given_up;
  const auto end = given_up.get_future().share();
  spawn(
      4,
      [&](const ProcessGroup& world) {
        const auto wait_for_all = [&](milliseconds timeout) {
          c10d::BarrierOptions options;
          options.timeout = timeout;
          world.backend()->monitoredBarrier(options, true);
        };
        for (int i = 0; i < 3; ++i) wait_for_all(std::chrono::seconds(60));
        if (world.rank() % 2 == 1) {
          end.wait_for(std::chrono::seconds(60));
          return;
        }
        const Caught caught =
            caught_from([&] { wait_for_all(milliseconds(300)); });
        if (world.rank() == 0) {
          given_up.set_value();
          require(caught.code == ErrorCode::kCollectiveFailed &&
                      caught.names("1, 3") && caught.names("monitoredBarrier"),
                  "rank 0 says: " + caught.message);
        } else {
          require(!caught.message.empty(), "rank 2 is told");
        }
      },
      options_of(GetParam()));
}

TEST_P(C10d, AMonitoredBarrierTellsALateRankHowItEnded) {
  std::promise<void> given_up;
  const auto end = given_up.get_future().share();
  spawn(
      2,
      [&](const ProcessGroup& world) {
        c10d::BarrierOptions options;
        options.timeout = milliseconds(world.rank() == 0 ? 200 : 60'000);
        if (world.rank() == 1) end.wait_for(std::chrono::seconds(60));
        const Caught caught = caught_from(
            [&] { world.backend()->monitoredBarrier(options, false); });
        if (world.rank() == 0) given_up.set_value();
        require(caught.code == ErrorCode::kCollectiveFailed &&
                    caught.names("Rank 1"),
                caught.message);
        // Its late message is not taken for that of the next.
        options.timeout = std::chrono::seconds(60);
        world.backend()->monitoredBarrier(options, true);
      },
      options_of(GetParam()));
}

// batch_isend_irecv() in Python then returns the work of each message, as over
// Gloo.
TEST_P(C10d, MessagesHaveNoFutureAndAreNotCoalesced) {
  spawn(
      2,
      [](const ProcessGroup& world) {
        const auto backend = world.backend();
        const int peer = 1 - world.rank();
        Tensors sent{torch::full({1000}, 1.0)}, received{torch::zeros({1000})};
        const auto sending = backend->send(sent, peer, 0);
        const auto receiving = backend->recv(received, peer, 0);
        require(caught_from([&] { receiving->getFuture(); }).code ==
                    ErrorCode::kMisuse,
                "a future");
        sending->wait();
        receiving->wait();
        require(torch::equal(received[0], sent[0]), "another message");
        require(!backend->supportsCoalescing(), "coalescing");
      },
      options_of(GetParam()));
}

TEST_P(C10d, AWorldLeavesTheStoresTimeoutAlone) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(milliseconds(1234));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const ProcessGroup world(std::make_shared<const ProcessGroup::Impl>(
          store, rank, 2, "127.0.0.1", options_of(GetParam())));
      EXPECT_EQ(world.store()->getTimeout(), std::chrono::seconds(100));
      world.store()->setTimeout(milliseconds(777));
      world.barrier();
      const auto group = world.new_group({0, 1});
      group->barrier();
    });
  }
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(store->getTimeout(), milliseconds(1234));
}

TEST(DeviceTypes, MustBeTheSameOnAllRanks) {
  check_device_types({"cuda"});
  check_device_types({"cpu", "cpu", "cpu"});
  const Caught caught = caught_from([] {
    check_device_types({"cuda", "cuda", "cpu"});
  });
  EXPECT_EQ(caught.code, ErrorCode::kMixedDevices) << caught.message;
  EXPECT_NE(caught.message.find("got cuda on rank 0, cpu on rank 2"),
            std::string::npos)
      << caught.message;
}

// They would choose different backends, and wait for each other.
TEST(DeviceTypes, AreComparedBeforeABackendIsChosen) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      ProcessGroupOptions options = options_of("auto");
      if (rank == 1) options.device_type(torch::kCUDA);
      const Caught caught = caught_from([&] {
        ProcessGroup(std::make_shared<const ProcessGroup::Impl>(
            store, rank, 2, "127.0.0.1", options));
      });
      EXPECT_EQ(caught.code, ErrorCode::kMixedDevices) << caught.message;
    });
  }
  for (auto& rank : ranks) rank.join();
}

TEST(WorldStore, WaitsForItsOwnTimeout) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->setTimeout(std::chrono::hours(1));
  const ProcessGroupOptions options = options_of("shm", milliseconds(200));
  // The second of two ranks never arrives.
  const Caught caught = caught_from([&] {
    ProcessGroup(std::make_shared<const ProcessGroup::Impl>(
        store, 0, 2, "127.0.0.1", options));
  });
  EXPECT_EQ(caught.code, ErrorCode::kRanksNotConnected) << caught.message;
}

TEST_P(C10d, AProfilerSeesTheOperations) {
  static std::mutex mutex;
  static std::multiset<std::string> seen;
  seen.clear();
  const auto note = [](const at::RecordFunction& function)
      -> std::unique_ptr<at::ObserverContext> {
    const std::lock_guard lock(mutex);
    seen.insert(function.name());
    return nullptr;
  };
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback(note).scopes({at::RecordScope::USER_SCOPE}));
  spawn(
      2,
      [](const ProcessGroup& world) {
        at::Tensor tensor = torch::ones({3});
        world.all_reduce(tensor);
        world.broadcast(tensor, 0);
        world.all_gather(tensor);
        world.barrier();
        const int other = 1 - world.rank();
        at::Tensor received = torch::zeros({3});
        const Work sent = world.isend(tensor, other);
        world.recv(received, other);
        sent.wait();
      },
      options_of(GetParam()));
  at::removeCallback(handle);
  for (const char* name :
       {"all_reduce", "broadcast", "all_gather", "send", "recv"}) {
    EXPECT_GE(seen.count(GetParam() + ":" + name), 2) << name;
  }
}

TEST_P(C10d, CollectivesAreNumbered) {
  spawn(
      2,
      [](const ProcessGroup& world) {
        const auto backend_of_group = world.backend();
        auto& backend = *backend_of_group;
        backend.setSequenceNumberForGroup();
        const uint64_t first = backend.getSequenceNumberForGroup();
        for (uint64_t i = 0; i < 5; ++i) {
          Tensors tensors{torch::ones({3})};
          const auto work = backend.allreduce(tensors, {});
          work->wait();
          require(work->getSequencenumber() == first + i, "a work's number");
        }
        require(backend.getSequenceNumberForGroup() == first + 5, "the next");
      },
      options_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Backends, C10d, testing::Values("shm", "tcp"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace lockstep
