#include "lockstep/comm/work_queue.h"

#include <future>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/core/ivalue.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "tests/base/error_code_of.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Future = c10::ivalue::Future;
using WorkPtr = c10::intrusive_ptr<QueuedWork>;

constexpr auto kDeadline = std::chrono::seconds(60);

WorkPtr new_work() {
  return c10::make_intrusive<QueuedWork>(0, c10d::OpType::ALLREDUCE,
                                         std::vector<at::Tensor>());
}

void then(const WorkPtr& work, const std::function<void()>& act) {
  work->getFuture()->addCallback([act](Future&) { act(); });
}

/// A flag that is waited for.
class Event {
 public:
  void set() { promise_.set_value(); }
  bool wait() {
    return future_.wait_for(kDeadline) == std::future_status::ready;
  }

 private:
  std::promise<void> promise_;
  std::shared_future<void> future_ = promise_.get_future().share();
};

/// A queue, and what was done in it in turn.
class WorkQueueTest : public testing::Test {
 protected:
  WorkPtr submit(const std::string& name, WorkPtr work = new_work(),
                 milliseconds timeout = milliseconds(0)) {
    return queue_->submit(
        work, [this, name] { note(name); }, true, timeout);
  }
  /// Keeps the queue's thread busy until begin() is called.
  void hold() {
    queue_->submit(
        new_work(), [this] { EXPECT_TRUE(begin_.wait()); }, true);
  }
  void begin() { begin_.set(); }
  void note(const std::string& name) {
    const std::lock_guard lock(mutex_);
    done_ += name;
  }
  std::string done() {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  std::unique_ptr<WorkQueue> queue_ = std::make_unique<WorkQueue>();
  Event begin_;
  std::mutex mutex_;
  std::string done_;
};

TEST_F(WorkQueueTest, DoesWhatACallbackSubmitsBeforeWhatIsQueued) {
  hold();
  const auto first = submit("a");
  then(first, [&] {
    const auto nested = submit("b");
    then(nested, [&] { submit("c")->wait(milliseconds(60'000)); });
    nested->wait(milliseconds(60'000));
    note("|");
  });
  const auto last = submit("d");
  begin();
  EXPECT_TRUE(last->wait(milliseconds(60'000)));
  EXPECT_EQ(done(), "abc|d");
}

TEST_F(WorkQueueTest, ACallbackMayWaitForWhatIsQueuedBehindIt) {
  hold();
  const auto first = submit("a");
  const auto second = submit("b");
  const auto third = submit("c");
  then(first, [&] {
    third->wait(milliseconds(60'000));
    note("|");
  });
  const auto last = submit("d");
  begin();
  EXPECT_TRUE(last->wait(milliseconds(60'000)));
  EXPECT_EQ(done(), "abc|d");
}

TEST_F(WorkQueueTest, ACallbackMayDestroyTheQueue) {
  hold();
  const auto first = submit("a");
  Event gone;
  then(first, [&] {
    queue_.reset();
    gone.set();
  });
  const auto second = submit("b");
  begin();
  ASSERT_TRUE(gone.wait());
  EXPECT_TRUE(second->wait(milliseconds(60'000)));
  EXPECT_EQ(done(), "ab");
}

TEST_F(WorkQueueTest, ACallbackThatBlocksFailsWhatIsBehindItAtItsTimeout) {
  std::promise<std::string> reason;
  queue_->on_failure([&](const std::string& text) { reason.set_value(text); });
  hold();
  const auto first = submit("a", new_work(), milliseconds(50));
  const auto second = submit("b", new_work(), milliseconds(50));
  Event release;
  // As one that waits for a future that only this thread could complete.
  then(first, [&] { EXPECT_TRUE(release.wait()); });
  begin();
  try {
    second->wait();
    FAIL() << "waited for what can't be";
  } catch (const CommError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCollectiveFailed);
    EXPECT_NE(std::string(error.what()).find("ALLREDUCE"), std::string::npos)
        << error.what();
  }
  auto told = reason.get_future();
  ASSERT_EQ(told.wait_for(kDeadline), std::future_status::ready);
  EXPECT_NE(told.get().find("ALLREDUCE"), std::string::npos);
  // The order of the ranks is lost: nothing more is done.
  EXPECT_THROW(submit("c")->wait(), CommError);
  release.set();
  queue_.reset();
  EXPECT_EQ(done(), "a");
}

TEST_F(WorkQueueTest, AWaitForAFutureBehindACallbackEndsAtTheTimeout) {
  hold();
  const auto first = submit("a", new_work(), milliseconds(50));
  const auto second = submit("b", new_work(), milliseconds(50));
  const auto future = second->getFuture();
  std::promise<bool> has_error;
  // A future, unlike a Work, can't be helped with.
  then(first, [&] {
    future->wait();
    has_error.set_value(future->hasError());
  });
  begin();
  auto result = has_error.get_future();
  ASSERT_EQ(result.wait_for(kDeadline), std::future_status::ready);
  EXPECT_TRUE(result.get());
}

TEST_F(WorkQueueTest, RunsInTheCallersThreadOnlyIfItIsIdle) {
  const auto caller = std::this_thread::get_id();
  std::thread::id runner;
  EXPECT_TRUE(
      queue_->run_if_idle([&] { runner = std::this_thread::get_id(); }));
  EXPECT_EQ(runner, caller);
  // The caller gets the exception, and the queue stays usable.
  EXPECT_THROW(queue_->run_if_idle([] { throw std::runtime_error("thrown"); }),
               std::runtime_error);
  EXPECT_TRUE(queue_->run_if_idle([&] { note("a"); }));
  hold();
  const auto work = submit("b");
  EXPECT_FALSE(queue_->run_if_idle([&] { note("never"); }));
  begin();
  EXPECT_TRUE(work->wait(milliseconds(60'000)));
  EXPECT_EQ(done(), "ab");
}

TEST_F(WorkQueueTest, AWaitThatTimesOutLeavesTheOperationAlone) {
  hold();
  const auto work = submit("a");
  EXPECT_EQ(error_code_of([&] { work->wait(milliseconds(20)); }),
            ErrorCode::kCollectiveFailed);
  EXPECT_FALSE(work->isCompleted());
  begin();
  EXPECT_TRUE(work->wait(milliseconds(60'000)));
  EXPECT_EQ(done(), "a");
}

TEST_F(WorkQueueTest, NestedOperationsMayTakeTheirTime) {
  hold();
  const auto first = submit("a", new_work(), milliseconds(50));
  then(first, [&] {
    // Longer than the timeout of what waits: this is no callback's blocking.
    queue_->submit(
        new_work(),
        [&] {
          const auto until =
              std::chrono::steady_clock::now() + milliseconds(200);
          std::this_thread::sleep_until(until);
          note("b");
        },
        true, milliseconds(50));
  });
  const auto last = submit("c", new_work(), milliseconds(50));
  begin();
  EXPECT_TRUE(last->wait(milliseconds(60'000)));
  EXPECT_EQ(done(), "abc");
}

}  // namespace
}  // namespace lockstep
