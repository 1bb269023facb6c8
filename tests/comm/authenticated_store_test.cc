#include "lockstep/comm/authenticated_store.h"

#include <future>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/store/secret_file.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/scoped_environment.h"
#include "tests/store/served.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Bytes = std::vector<uint8_t>;
using Store = c10::intrusive_ptr<c10d::Store>;

Store store_of(const store::Served& served, int rank = 0) {
  return c10::make_intrusive<AuthenticatedStore>(
      std::make_shared<store::Client>(served.of(store::worker(rank))),
      milliseconds(30'000));
}

TEST(AuthenticatedStore, IsAStoreOfC10d) {
  store::Served served;
  served.server().begin_round(0, 2);
  const Store whole = store_of(served);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("mine", whole);
  store->set("a", "one");
  EXPECT_EQ(store->get_to_str("a"), "one");
  EXPECT_EQ(store->add("n", 3), 3);
  EXPECT_EQ(store->add("n", 4), 7);
  EXPECT_EQ(store->compareSet("c", Bytes{}, Bytes{1}), Bytes{1});
  EXPECT_EQ(store->compareSet("c", Bytes{2}, Bytes{3}), Bytes{1});
  EXPECT_TRUE(store->check({"a", "n"}));
  EXPECT_FALSE(store->check({"a", "b"}));
  EXPECT_TRUE(store->deleteKey("a"));
  EXPECT_EQ(whole->getNumKeys(), 2);
  EXPECT_EQ(whole->clone()->get_to_str("mine/n"), "7");
  EXPECT_THROW(store->wait({"b"}, milliseconds(20)), c10::DistStoreError);
  whole->setTimeout(milliseconds(20));
  EXPECT_THROW(whole->get("b"), c10::DistStoreError);
}

class AuthenticatedWorld : public testing::TestWithParam<const char*> {};

TEST_P(AuthenticatedWorld, MeetsInIt) {
  store::Served served;
  served.server().begin_round(0, 2);
  const auto sum = [&](int rank) {
    const ProcessGroup world(std::make_shared<const ProcessGroup::Impl>(
        store_of(served, rank), rank, 2, "127.0.0.1",
        ProcessGroupOptions()
            .backend(GetParam())
            .timeout(milliseconds(60'000))));
    auto value = torch::full({1000}, rank + 1.0);
    world.all_reduce(value);
    world.barrier();
    return value[999].item<double>();
  };
  auto beside = std::async(std::launch::async, sum, 1);
  EXPECT_EQ(sum(0), 3.0);
  EXPECT_EQ(beside.get(), 3.0);
}

INSTANTIATE_TEST_SUITE_P(Over, AuthenticatedWorld,
                         testing::Values("shm", "tcp"),
                         [](const auto& test) { return test.param; });

int free_port() {
  int port = 0;
  store::listen_at("127.0.0.1", port).clear();
  return port;
}

Environment rank_of_two(int rank, std::vector<uint16_t> ports) {
  Environment environment;
  environment.rank = rank;
  environment.world_size = 2;
  environment.local_rank = rank;
  environment.local_world_size = 2;
  environment.run_id = "job of two";
  environment.master_addr = "127.0.0.1";
  environment.master_ports = std::move(ports);
  return environment;
}

TEST(ConnectStore, Rank0ServesItAndOthersFindIt) {
  const ScopedEnvironment none({});
  // Another job is at the first port, and one without a secret at the second.
  store::ServerOptions other;
  other.secret = store::loopback_secret();
  store::Served first(other), second;
  const std::vector<uint16_t> ports{static_cast<uint16_t>(first.port()),
                                    static_cast<uint16_t>(second.port()),
                                    static_cast<uint16_t>(free_port())};
  auto beside = std::async(std::launch::async, [&] {
    return connect_store(rank_of_two(1, ports), milliseconds(60'000));
  });
  const Store mine = connect_store(rank_of_two(0, ports), milliseconds(60'000));
  const Store its = beside.get();
  mine->set("from 0", "hello");
  EXPECT_EQ(its->get_to_str("from 0"), "hello");
  // A second world of this process is in the same store.
  const Store again =
      connect_store(rank_of_two(0, ports), milliseconds(60'000));
  EXPECT_EQ(again->get_to_str("from 0"), "hello");
}

TEST(ConnectStore, ForOtherHostsNeedsASecretAndANameThatTheyReach) {
  const ScopedEnvironment none({});
  auto environment = rank_of_two(0, {static_cast<uint16_t>(free_port())});
  environment.local_world_size = 1;
  EXPECT_PRED2(contains, error_of<CommError>([&] {
                 connect_store(environment, milliseconds(1000));
               }),
               "which here is loopback only");
  environment.master_addr = "192.0.2.1";
  EXPECT_PRED2(contains, error_of<InvalidArgument>([&] {
                 connect_store(environment, milliseconds(1000));
               }),
               "openssl rand");
  const ScopedEnvironment open({{"LOCKSTEP_NO_SECRET", "1"}});
  EXPECT_PRED2(contains, error_of<CommError>([&] {
                 connect_store(environment, milliseconds(1000));
               }),
               "a name or an address that an interface of this host has");
}

}  // namespace
}  // namespace lockstep
