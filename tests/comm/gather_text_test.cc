// Tests how the ranks exchange texts through the store before they are
// connected.
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group_impl.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

constexpr int kRanks = 4;

std::shared_ptr<const ProcessGroup::Impl> group_of(
    const c10::intrusive_ptr<c10d::Store>& store, int rank,
    std::chrono::milliseconds timeout) {
  ProcessGroupOptions options;
  options.backend("tcp").timeout(timeout);
  return std::make_shared<const ProcessGroup::Impl>(store, rank, kRanks,
                                                    "127.0.0.1", options);
}

void in_threads(const std::vector<int>& ranks,
                const std::function<void(int)>& task) {
  std::vector<std::thread> threads;
  threads.reserve(ranks.size());
  for (const int rank : ranks) threads.emplace_back(task, rank);
  for (auto& thread : threads) thread.join();
}

// Rank 0 publishes up to 1 MiB of texts at once. Longer ones are read one by
// one.
TEST(GatherText, ReturnsTheTextsOfAllRanks) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  in_threads({0, 1, 2, 3}, [&](int own) {
    const auto group = group_of(store, own, std::chrono::seconds(100));
    for (const size_t length : {0, 7, 100'000, 400'000, 1}) {
      const auto text_of = [&](int rank) {
        return std::string(rank * length, static_cast<char>('a' + rank));
      };
      std::vector<std::string> expected;
      for (int rank = 0; rank < kRanks; ++rank) {
        expected.push_back(text_of(rank));
      }
      EXPECT_EQ(group->all_gather_text(text_of(own)), expected);
    }
  });
}

TEST(GatherText, NamesARankThatDoesNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  in_threads({0, 1, 3}, [&](int own) {
    const std::string error = error_of<CommError>(
        [&] { group_of(store, own, std::chrono::seconds(3)); });
    EXPECT_PRED2(contains, error, "of rank 2' in the store: timed out");
  });
}

}  // namespace
}  // namespace lockstep
