// Tier: nightly, alone. It sends more than 2 GiB.
#include <array>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "tests/shm/p2p.h"

namespace lockstep::shm {
namespace {

// More than 32 bits can count. The pages from calloc() don't exist until they
// are used.
TEST(HugeMessage, HasMoreThan2GiB) {
  constexpr size_t kMoreThan2GiB = (size_t{1} << 31) + 4097;
  const auto free_bytes = static_cast<size_t>(::sysconf(_SC_AVPHYS_PAGES)) *
                          static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  if (free_bytes < 3 * kMoreThan2GiB) GTEST_SKIP() << "needs 6 GiB of memory";
  const auto messages = run_p2p(Kind::kThreads, 2, [](P2pRank& self) {
    const std::unique_ptr<void, decltype(&std::free)> memory(
        std::calloc(kMoreThan2GiB, 1), &std::free);
    const std::span data(static_cast<std::byte*>(memory.get()), kMoreThan2GiB);
    const std::array<size_t, 3> marks{0, size_t{1} << 31, kMoreThan2GiB - 1};
    if (self.rank() == 0) {
      for (const size_t at : marks) data[at] = std::byte{42};
      self.send(1, 0, data).get();
      return;
    }
    self.receive(0, 0, data).get();
    for (const size_t at : marks) {
      require(data[at] == std::byte{42}, std::to_string(at));
    }
  });
  EXPECT_EQ(messages, std::vector<std::string>(2));
}

}  // namespace
}  // namespace lockstep::shm
