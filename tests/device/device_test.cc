#include "lockstep/device/device.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"

namespace lockstep {
namespace {

int core_count() { return static_cast<int>(allowed_cores().size()); }

std::string error_of_list(
    std::string_view list,
    Oversubscription oversubscription = Oversubscription::kRefuse) {
  try {
    devices(list, Duplicates::kRefuse, oversubscription);
  } catch (const DeviceError& error) {
    return error.what();
  }
  return "no error";
}

// On however few cores this machine has.
std::vector<Device> many(std::string_view list,
                         Duplicates duplicates = Duplicates::kRefuse) {
  return devices(list, duplicates, Oversubscription::kAllow);
}

std::string error_of_many(std::string_view list) {
  return error_of_list(list, Oversubscription::kAllow);
}

TEST(DevicesOfManySlices, ReadsACountOfSlices) {
  const auto list = many(" 3xcpu ");
  EXPECT_EQ(join_names(list), "cpu:0, cpu:1, cpu:2");
  for (const Device& device : list) EXPECT_EQ(device.slices, 3);
}

TEST(DevicesOfManySlices, ReadsANumberAsSlicesWhereThereIsNoGpu) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(many("3"), many("3xcpu"));
}

TEST(DevicesOfManySlices, ReadsAListAsIndices) {
  const auto list = many(" cpu:1 , cpu:0 ");
  EXPECT_EQ(join_names(list), "cpu:1, cpu:0");
  EXPECT_EQ(list[0], (Device{c10::kCPU, 1, 2}));
}

TEST(DevicesOfManySlices, RefusesADeviceNamedTwice) {
  expect_problem(error_of_many("cpu:0,cpu:1,cpu:0"), ErrorCode::kBadOption,
                 {"cpu:0", "cpu:0, cpu:1, cpu:0"});
}

TEST(DevicesOfManySlices, AllowsADeviceTwiceWhenAsked) {
  const auto list = many("cpu:0,cpu:1,cpu:0", Duplicates::kAllow);
  EXPECT_EQ(join_names(list), "cpu:0, cpu:1, cpu:0");
  for (const Device& device : list) EXPECT_EQ(device.slices, 2);
}

TEST(DevicesOfManySlices, RefusesAListThatLeavesASliceOut) {
  expect_problem(error_of_many("cpu:0,cpu:2"), ErrorCode::kNoSuchDevice,
                 {"cpu:2", "'cpu:0,cpu:2'", "cpu:0..cpu:1"});
}

TEST(DevicesOfManySlices, SuggestsACountWhereOneSliceIsNamed) {
  expect_problem(error_of_many("cpu:2"), ErrorCode::kNoSuchDevice,
                 {"'cpu:2'", "write 2xcpu for 2 slices", "cpu:0,cpu:1"});
  expect_problem(error_of_many("cpu:1"), ErrorCode::kNoSuchDevice,
                 {"'cpu:1'", "write cpu for the whole host", "cpu:0,cpu:1"});
  EXPECT_EQ(many("2xcpu"), many("cpu:0,cpu:1"));
}

TEST(DevicesOfManySlices, SharesCoresInTurnWhenThereAreTooFew) {
  const int count = core_count() + 1;
  const auto list = many(fmt::format("{}xcpu", count));
  ASSERT_EQ(list.size(), static_cast<size_t>(count));
  EXPECT_EQ(cores_of(list.front()), cores_of(list.back()));
  EXPECT_EQ(cores_of(list.back()).size(), 1u);
}

TEST(DevicesOfManySlices, RefusesMoreSlicesThanThereAreAccounts) {
  expect_problem(error_of_many("257xcpu"), ErrorCode::kNoSuchDevice,
                 {"'257xcpu'", "256"});
}

TEST(Devices, NamesWhatExistsWhenSlicesOutnumberCores) {
  const int count = core_count() + 1;
  expect_problem(error_of_list(fmt::format("{}xcpu", count)),
                 ErrorCode::kNoSuchDevice,
                 {fmt::format("got {}", count),
                  fmt::format("({} core", core_count()), "--oversubscribe"});
}

TEST(Devices, RefusesNamesItDoesNotKnow) {
  for (const std::string name :
       {"gpu:0", "cpu:x", "cpu:", ":", "", "cpu:-1", "cpu:0,", "cpu:1.5",
        "cuda:99999999999", "cpu:0,banana", "xcpu", "2x", "2xgpu", "-2xcpu",
        "2 xcpu", "2xcpu,cpu:0"}) {
    SCOPED_TRACE(name);
    expect_problem(error_of_list(name), ErrorCode::kNoSuchDevice,
                   {"[device]", "cuda:0,cuda:1"});
  }
}

TEST(Devices, RefusesToBeNone) {
  expect_problem(error_of_list("0xcpu"), ErrorCode::kNoSuchDevice, {"'0xcpu'"});
}

TEST(Devices, RefusesTwoKindsInOneList) {
  expect_problem(error_of_list("cpu:0,cuda:0"), ErrorCode::kMixedDevices,
                 {"cpu:0", "cuda:0"});
}

TEST(Devices, NamesTheGpuThatIsMissing) {
  const int missing = cuda_device_count();
  expect_problem(error_of_list(fmt::format("cuda:{}", missing)),
                 ErrorCode::kNoSuchDevice,
                 {fmt::format("cuda:{}", missing), "GPU"});
}

TEST(Devices, CountsTheGpusThatAreMissing) {
  const std::string list = fmt::format("{}xcuda", cuda_device_count() + 1);
  expect_problem(error_of_list(list), ErrorCode::kNoSuchDevice,
                 {fmt::format("'{}'", list), "GPU"});
}

TEST(Devices, GivesTheWholeHostAsOneSlice) {
  const auto list = devices("cpu");
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(cores_of(list[0]), allowed_cores());
  EXPECT_EQ(devices("cpu:0"), list);
  EXPECT_EQ(devices("1xcpu"), list);
}

TEST(Devices, FindsASlicePerCoreWhereThereIsNoGpu) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(devices("auto").size(), allowed_cores().size());
  EXPECT_EQ(devices("1").size(), 1u);
}

TEST(Devices, HasTwoNamesForTheDefaultList) {
  EXPECT_EQ(devices("all"), devices("auto"));
}

TEST(TorchDevice, IsOneDeviceForAllSlices) {
  EXPECT_EQ(torch_device({c10::kCPU, 1, 2}), c10::Device(c10::DeviceType::CPU));
  EXPECT_EQ(torch_device({c10::kCUDA, 1, 0}),
            c10::Device(c10::DeviceType::CUDA, 1));
}

TEST(CoresOf, CutsTheHostIntoEqualSlicesThatDoNotOverlap) {
  for (int slices = 1; slices <= core_count(); ++slices) {
    std::set<int> seen;
    for (int i = 0; i < slices; ++i) {
      const auto cores = cores_of({c10::kCPU, i, slices});
      EXPECT_EQ(cores.size(), allowed_cores().size() / size_t(slices));
      for (const int core : cores) EXPECT_TRUE(seen.insert(core).second);
    }
  }
}

TEST(CoresOf, RefusesWhatIsNoSlice) {
  EXPECT_THROW(cores_of({c10::kCUDA, 0, 0}), DeviceError);
  EXPECT_THROW(cores_of({c10::kCPU, 2, 2}), DeviceError);
  EXPECT_THROW(cores_of({c10::kCPU, -1, 2}), DeviceError);
}

}  // namespace
}  // namespace lockstep
