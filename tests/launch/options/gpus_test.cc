#include "lockstep/launch/options/gpus.h"

#include <cstdlib>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

using Variables = std::map<std::string, std::string>;

/// Restores the variables that name the visible GPUs.
class OwnGpu : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kNames) {
      if (const char* value = ::getenv(name)) previous_[name] = value;
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const char* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : previous_) {
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }

 private:
  static constexpr const char* kNames[] = {"CUDA_VISIBLE_DEVICES",
                                           "HIP_VISIBLE_DEVICES"};
  Variables previous_;
};

TEST_F(OwnGpu, IsTheOneOfTheLocalRank) {
  EXPECT_EQ(variables_of_own_gpu(2),
            (Variables{{"CUDA_VISIBLE_DEVICES", "2"}}));
  ::setenv("CUDA_VISIBLE_DEVICES", "5, GPU-3f ,MIG-1", 1);
  EXPECT_EQ(variables_of_own_gpu(0),
            (Variables{{"CUDA_VISIBLE_DEVICES", "5"}}));
  EXPECT_EQ(variables_of_own_gpu(1),
            (Variables{{"CUDA_VISIBLE_DEVICES", "GPU-3f"}}));
}

TEST_F(OwnGpu, TakesHipsVariableFirst) {
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  ::setenv("HIP_VISIBLE_DEVICES", "4,6", 1);
  EXPECT_EQ(variables_of_own_gpu(1), (Variables{{"CUDA_VISIBLE_DEVICES", "6"},
                                                {"HIP_VISIBLE_DEVICES", "6"}}));
}

TEST_F(OwnGpu, MustBeVisible) {
  ::setenv("CUDA_VISIBLE_DEVICES", "5,7", 1);
  EXPECT_TRUE(
      is_error(error_of<InvalidArgument>([] { variables_of_own_gpu(2); }),
               ErrorCode::kNoSuchDevice,
               {"local rank 2", "CUDA_VISIBLE_DEVICES", "'5,7'"}));
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(variables_of_own_gpu(0), (Variables{{"CUDA_VISIBLE_DEVICES", ""}}));
  EXPECT_THROW(variables_of_own_gpu(1), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::launch
