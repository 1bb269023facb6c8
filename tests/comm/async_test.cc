// Tests how asynchronous calls end: late, with their ProcessGroup, and with a
// lost rank.

#include <future>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/foreign_backend.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/process_group_impl.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep::async_test {
namespace {

using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;

constexpr auto kDeadline = std::chrono::seconds(60);

ProcessGroupOptions options_of(const std::string& backend) {
  ProcessGroupOptions options;
  options.backend(backend);
  options.timeout(std::chrono::seconds(100));
  return options;
}

at::Tensor filled(double value, int64_t count = 100) {
  return torch::full({count}, value, torch::kFloat64);
}

/// The code of what `work` ended with; nothing if it ended well.
std::optional<ErrorCode> end_of(const Work& work, milliseconds timeout = {}) {
  try {
    work.wait(timeout);
  } catch (const CommError& error) {
    return error.code();
  }
  return std::nullopt;
}

/// A thread of one rank lets that of another go on.
class Signal {
 public:
  void set() { promise_.set_value(); }
  void wait() const {
    require(future_.wait_for(kDeadline) == std::future_status::ready,
            "the other rank came");
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

class AsyncWork : public testing::TestWithParam<std::string> {};

TEST_P(AsyncWork, AWaitEndsAtItsTimeoutAndMayBeRepeated) {
  Signal timed_out;
  spawn(
      2,
      [&](const ProcessGroup& world) {
        at::Tensor tensor = filled(world.rank() + 1);
        if (world.rank() == 1) {
          timed_out.wait();
          world.all_reduce(tensor);
        } else {
          const Work work =
              world.all_reduce(tensor, ReduceOp::SUM, /*async_op=*/true);
          require(
              end_of(work, milliseconds(50)) == ErrorCode::kCollectiveFailed,
              "a wait ends at its timeout");
          require(!work.is_completed(), "the call goes on");
          timed_out.set();
          work.wait(kDeadline);
        }
        require(torch::equal(tensor, filled(3)), "the sum came later");
      },
      options_of(GetParam()));
}

TEST_P(AsyncWork, WhatIsQueuedIsDoneBeforeTheWorldEnds) {
  spawn(
      3,
      [](const ProcessGroup& world) {
        auto group = world.new_group({0, 1, 2});
        std::vector<Work> works;
        for (int i = 0; i < 50; ++i) {
          works.push_back(group->all_reduce(filled(i, 5000), ReduceOp::SUM,
                                            /*async_op=*/true));
        }
        group.reset();
        int i = 0;
        for (const Work& work : works) {
          require(work.is_completed(), "done when the ProcessGroup is gone");
          work.wait();
          for (const auto& tensor : work.result()) {
            require(torch::equal(tensor, filled(3 * i++, 5000)), "a sum");
          }
        }
        require(i == 50, "all calls have a result");
      },
      options_of(GetParam()));
}

TEST_P(AsyncWork, ARankThatFailsEndsEveryQueuedWork) {
  spawn(
      2,
      [](const ProcessGroup& world) {
        const auto group = world.new_group({0, 1});
        constexpr int kShared = 3;
        if (world.rank() == 1) {
          for (int i = 0; i < kShared; ++i) {
            at::Tensor tensor = filled(1);
            group->all_reduce(tensor);
          }
          group->abort("of rank 1");
        } else {
          std::vector<Work> works;
          std::vector<std::future<bool>> futures;
          for (int i = 0; i < 20; ++i) {
            works.push_back(
                group->all_reduce(filled(1), ReduceOp::SUM, /*async_op=*/true));
            const auto has_error = std::make_shared<std::promise<bool>>();
            futures.push_back(has_error->get_future());
            works.back().future()->addCallback(
                [has_error](c10::ivalue::Future& future) {
                  has_error->set_value(future.hasError());
                });
          }
          for (size_t i = kShared; i < works.size(); ++i) {
            require(end_of(works[i]) == ErrorCode::kCollectiveFailed,
                    "each Work ends with the failure");
            require(works[i].is_completed(), "a failed Work is completed");
            // Each wait rethrows.
            require(end_of(works[i]) == ErrorCode::kCollectiveFailed, "again");
          }
          for (size_t i = kShared; i < futures.size(); ++i) {
            require(
                futures[i].wait_for(kDeadline) == std::future_status::ready &&
                    futures[i].get(),
                "a future has the error");
          }
          at::Tensor tensor = filled(1);
          bool has_thrown = false;
          try {
            group->all_reduce(tensor);
          } catch (const CommError&) {
            has_thrown = true;
          }
          require(has_thrown, "a synchronous call fails as well");
        }
        world.barrier();
      },
      options_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Backends, AsyncWork, testing::Values("shm", "tcp"),
                         [](const auto& instance) { return instance.param; });

TEST(AsyncMessage, AWaitEndsAtItsTimeoutAndMayBeRepeated) {
  Signal timed_out;
  spawn(
      2,
      [&](const ProcessGroup& world) {
        if (world.rank() == 1) {
          timed_out.wait();
          world.send(filled(7), 0);
          return;
        }
        const at::Tensor tensor = filled(0);
        const Work work = world.irecv(tensor, 1);
        require(!work.is_completed(), "nothing was sent");
        require(end_of(work, milliseconds(50)) == ErrorCode::kCollectiveFailed,
                "a wait ends at its timeout");
        timed_out.set();
        work.wait(kDeadline);
        require(work.is_completed() && torch::equal(tensor, filled(7)),
                "the message came later");
      },
      options_of("shm"));
}

TEST(Work, OfNothingIsDone) {
  const Work work;
  work.wait();
  EXPECT_TRUE(work.is_completed());
  EXPECT_TRUE(work.result().empty());
  EXPECT_TRUE(work.future()->completed());
}

TEST(WorldOfOne, DoesItsCallsAtOnce) {
  const ProcessGroup world;
  const at::Tensor tensor = filled(4);
  const Work sum = world.all_reduce(tensor, ReduceOp::SUM, /*async_op=*/true);
  EXPECT_TRUE(sum.is_completed());
  EXPECT_TRUE(torch::equal(sum.future()->value().toTensorVector()[0], tensor));
  const Work gathered = world.all_gather(tensor, /*async_op=*/true);
  EXPECT_TRUE(torch::equal(gathered.result()[0], tensor));
  EXPECT_FALSE(gathered.result()[0].is_same(tensor));
}

/// Work that ends with an error of NCCL.
struct FailedNcclWork : c10d::Work {
  FailedNcclWork() : c10d::Work(/*rank=*/1, c10d::OpType::ALLREDUCE) {}
  bool wait(milliseconds) override {
    C10_THROW_ERROR(DistBackendError,
                    "NCCL error in: ProcessGroupNCCL.cpp\nremote peer exited");
  }
};

TEST(Work, ThrowsErrorsOfNcclAsCommError) {
  const Work work(c10::make_intrusive<FailedNcclWork>());
  try {
    work.wait();
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveFailed);
    const std::string text = error.what();
    EXPECT_NE(text.find("ALLREDUCE failed"), std::string::npos) << text;
    EXPECT_NE(text.find("got remote peer exited"), std::string::npos) << text;
  }
}

// A group over any backend for devices. In its place is the backend of another
// group.
TEST(ForeignBackend, MakesTheCallsOfItsGroup) {
  spawn(
      2,
      [](const ProcessGroup& world) {
        const int rank = world.rank();
        const auto other = world.new_group({0, 1});
        const auto impl = std::make_shared<ProcessGroup::Impl>();
        impl->rank = rank;
        impl->size = 2;
        impl->timeout = world.timeout();
        impl->direct.reset();
        impl->foreign = std::make_unique<ForeignBackend>(other->backend(),
                                                         "other", torch::kCPU);
        const ProcessGroup group(impl);
        const Tensors parts{filled(rank), filled(rank + 10)};
        const at::Tensor sum = filled(rank + 1), reduced = filled(rank + 1),
                         sent = filled(rank), part = filled(-1),
                         part_sum = filled(-1), whole_sum = filled(-1);
        const Tensors exchanged{filled(-1), filled(-1)};
        group.all_reduce(sum);
        group.reduce(reduced, 1);
        group.broadcast(sent, 1);
        group.scatter(part, parts, 1);
        group.reduce_scatter(part_sum, parts);
        group.all_to_all(exchanged, parts);
        group.barrier();
        require(torch::equal(sum, filled(3)), "all_reduce");
        require(rank == 0 || torch::equal(reduced, filled(3)), "reduce");
        require(torch::equal(sent, filled(1)), "broadcast");
        require(torch::equal(part, filled(rank == 0 ? 1 : 11)), "scatter");
        require(torch::equal(part_sum, filled(rank == 0 ? 1 : 21)),
                "reduce_scatter");
        require(torch::equal(exchanged[1], filled(rank == 0 ? 1 : 11)),
                "all_to_all");
        const at::Tensor into = torch::empty({2, 100}, torch::kFloat64);
        const std::vector<Work> works{
            group.all_gather(filled(rank), true),
            group.gather(filled(rank), 0, true),
            group.all_gather_into_tensor(into, filled(rank), true),
            group.reduce_scatter_tensor(whole_sum,
                                        torch::cat({filled(rank), filled(5)}),
                                        ReduceOp::SUM, true)};
        for (const Work& work : works) work.wait();
        require(torch::equal(works[0].result()[1], filled(1)), "all_gather");
        require(rank == 1 || torch::equal(works[1].result()[1], filled(1)),
                "gather");
        require(torch::equal(into[1], filled(1)), "all_gather_into_tensor");
        require(torch::equal(whole_sum, filled(rank == 0 ? 1 : 10)),
                "reduce_scatter_tensor");
        if (rank == 0) {
          group.send(filled(5), 1);
        } else {
          require(group.recv_any(part) == 0, "the source of a message");
          require(torch::equal(part, filled(5)), "a message");
        }
        require(group.backend_name() == "other" && !group.sums_along_tree(),
                "what the group says about its backend");
      },
      options_of("shm"));
}

}  // namespace
}  // namespace lockstep::async_test
