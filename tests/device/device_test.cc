#include "lockstep/device/device.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/cpu_set.h"
#include "lockstep/base/error.h"
#include "tests/device/environment.h"

namespace lockstep {
namespace {

using testing_support::EnvironmentScope;

int core_count() { return static_cast<int>(allowed_cores().size()); }

std::string error_of(std::string_view list) {
  try {
    devices(list);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

::testing::AssertionResult contains(const std::string& text,
                                    const std::string& part) {
  if (text.find(part) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "'" << part << "' is not in '" << text << "'";
}

class DevicesOfManySlices : public ::testing::Test {
 private:
  EnvironmentScope oversubscribe_{"LOCKSTEP_OVERSUBSCRIBE", "1"};
};

TEST_F(DevicesOfManySlices, ReadsALoneCpuAsACount) {
  const auto list = devices("cpu:3");
  EXPECT_EQ(join_names(list), "cpu:0, cpu:1, cpu:2");
  for (const Device& device : list) EXPECT_EQ(device.slices, 3);
}

TEST_F(DevicesOfManySlices, ReadsAListAsIndices) {
  const auto list = devices(" cpu:1 , cpu:0 ");
  EXPECT_EQ(join_names(list), "cpu:1, cpu:0");
  EXPECT_EQ(list[0], (Device{DeviceKind::kCpu, 1, 2}));
}

TEST_F(DevicesOfManySlices, RefusesADeviceNamedTwice) {
  const std::string error = error_of("cpu:0,cpu:1,cpu:0");
  EXPECT_TRUE(contains(error, "cpu:0 is named twice"));
  EXPECT_TRUE(contains(error, "cpu:0, cpu:1, cpu:0"));
  EXPECT_TRUE(contains(error, "this machine has "));
}

TEST_F(DevicesOfManySlices, AllowsADeviceTwiceWhenAsked) {
  const auto list = devices("cpu:0,cpu:1,cpu:0", Duplicates::kAllow);
  EXPECT_EQ(join_names(list), "cpu:0, cpu:1, cpu:0");
  for (const Device& device : list) EXPECT_EQ(device.slices, 2);
}

TEST_F(DevicesOfManySlices, RefusesAListThatLeavesASliceOut) {
  const std::string error = error_of("cpu:0,cpu:2");
  EXPECT_TRUE(contains(error, "no device cpu:2 in 'cpu:0,cpu:2'"));
  EXPECT_TRUE(contains(error, "expected cpu:0..cpu:1"));
}

TEST_F(DevicesOfManySlices, SharesCoresInTurnWhenThereAreTooFew) {
  const int count = core_count() + 1;
  const auto list = devices(fmt::format("cpu:{}", count));
  ASSERT_EQ(list.size(), static_cast<size_t>(count));
  EXPECT_EQ(cores_of(list.front()), cores_of(list.back()));
  EXPECT_EQ(cores_of(list.back()).size(), 1u);
}

TEST_F(DevicesOfManySlices, RefusesMoreSlicesThanThereAreAccounts) {
  EXPECT_TRUE(contains(error_of("cpu:257"), "expected at most 256"));
}

TEST(Devices, NamesWhatExistsWhenSlicesOutnumberCores) {
  const int count = core_count() + 1;
  const std::string error = error_of(fmt::format("cpu:{}", count));
  EXPECT_TRUE(contains(error, "more slices than cores"));
  EXPECT_TRUE(contains(error, fmt::format("got {}", count)));
  EXPECT_TRUE(contains(error, fmt::format("({} core", core_count())));
  EXPECT_TRUE(contains(error, "LOCKSTEP_OVERSUBSCRIBE=1"));
}

TEST(Devices, RefusesNamesItDoesNotKnow) {
  for (const std::string name :
       {"gpu:0", "cpu:x", "cpu:", ":", "", "cpu:-1", "cpu:0,", "cpu:1.5",
        "cuda:99999999999", "cpu:0,banana"}) {
    const std::string error = error_of(name);
    EXPECT_TRUE(contains(error, "[device] unknown device '")) << name;
    EXPECT_TRUE(contains(error, "this machine has ")) << name;
  }
}

TEST(Devices, RefusesToBeNone) {
  EXPECT_TRUE(contains(error_of("cpu:0"), "asks for no device"));
  EXPECT_TRUE(contains(error_of("cpu:0"), "write cpu for the whole host"));
}

TEST(Devices, RefusesTwoKindsInOneList) {
  const std::string error = error_of("cpu:0,cuda:0");
  EXPECT_TRUE(contains(error, "expected all cpu or all cuda"));
  EXPECT_TRUE(contains(error, "got cpu:0 and cuda:0"));
}

TEST(Devices, NamesTheGpuThatIsMissing) {
  const int missing = cuda_device_count();
  const std::string error = error_of(fmt::format("cuda:{}", missing));
  EXPECT_TRUE(contains(error, fmt::format("no device cuda:{}", missing)));
  EXPECT_TRUE(contains(error, missing == 0 ? "no GPU" : "GPU"));
}

TEST(Devices, GivesTheWholeHostAsOneSlice) {
  const auto list = devices("cpu");
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(cores_of(list[0]), allowed_cores());
}

TEST(Devices, FindsASlicePerCoreWhereThereIsNoGpu) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(devices("auto").size(), allowed_cores().size());
  EXPECT_EQ(devices("1").size(), 1u);
}

TEST(GpuDevices, AreAllFoundByAuto) {
  const int count = cuda_device_count();
  if (count == 0) GTEST_SKIP() << "this machine has no GPU";
  EXPECT_EQ(devices("auto").size(), static_cast<size_t>(count));
  EXPECT_EQ(devices("cuda"), devices("auto"));
  EXPECT_EQ(devices("cuda:0")[0].name(), "cuda:0");
}

TEST(CoresOf, CutsTheHostIntoEqualSlicesThatDoNotOverlap) {
  for (int slices = 1; slices <= core_count(); ++slices) {
    std::set<int> seen;
    for (int i = 0; i < slices; ++i) {
      const auto cores = cores_of({DeviceKind::kCpu, i, slices});
      EXPECT_EQ(cores.size(), allowed_cores().size() / size_t(slices));
      for (const int core : cores) EXPECT_TRUE(seen.insert(core).second);
    }
  }
}

TEST(CoresOf, RefusesWhatIsNoSlice) {
  EXPECT_THROW(cores_of({DeviceKind::kCuda, 0, 0}), DeviceError);
  EXPECT_THROW(cores_of({DeviceKind::kCpu, 2, 2}), DeviceError);
  EXPECT_THROW(cores_of({DeviceKind::kCpu, -1, 2}), DeviceError);
}

}  // namespace
}  // namespace lockstep
