#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/temporary_folder.h"
#include "tests/comm/rank_tasks.h"

namespace lockstep::different_sizes_test {
namespace {

using Act = std::function<void(const ProcessGroup&, at::Tensor)>;

class DifferentSizes : public testing::TestWithParam<const char*> {
 protected:
  /// Returns the errors of two ranks that call `act` with tensors of 4096 and
  /// 4097 numbers.
  static std::array<std::string, 2> errors_of_ranks(const Act& act) {
    ProcessGroupOptions options;
    options.backend(GetParam()).timeout(std::chrono::seconds(20));
    std::array<std::string, 2> errors;
    spawn(
        2,
        [&](const ProcessGroup& world) {
          try {
            act(world, torch::ones({4096 + world.rank()}));
          } catch (const CommError& error) {
            errors.at(static_cast<size_t>(world.rank())) = error.what();
          }
        },
        options);
    return errors;
  }
};

TEST_P(DifferentSizes, AreNamedInsteadOfExchanged) {
  const Act acts[] = {
      [](const auto& world, at::Tensor tensor) { world.all_reduce(tensor); },
      [](const auto& world, at::Tensor tensor) { world.broadcast(tensor, 0); },
      [](const auto& world, at::Tensor tensor) { world.all_gather(tensor); },
  };
  for (const Act& act : acts) {
    const auto errors = errors_of_ranks(act);
    // Over tcp, the root of a broadcast waits for nobody, and a rank may only
    // see that the other one has closed the connection.
    EXPECT_NE(errors[1], "");
    const bool is_named =
        std::any_of(errors.begin(), errors.end(), [](const auto& error) {
          return contains(error, "4096 x Float") &&
                 contains(error, "4097 x Float");
        });
    EXPECT_TRUE(is_named) << errors[0] << '\n' << errors[1];
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, DifferentSizes,
                         testing::Values("shm", "tcp"),
                         [](const auto& instance) {
                           return std::string(instance.param);
                         });

}  // namespace
}  // namespace lockstep::different_sizes_test
