#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace {

// Threads cost more than they save on models this small.
class OneThread : public testing::Environment {
  void SetUp() override { torch::set_num_threads(1); }
};

[[maybe_unused]] const auto* one_thread =
    testing::AddGlobalTestEnvironment(std::make_unique<OneThread>().release());

}  // namespace
