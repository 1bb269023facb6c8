#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/data/datasets.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/data/image_of.h"

namespace lockstep::data {
namespace {

std::string fine_record(int coarse, int fine, char fill) {
  return std::string{static_cast<char>(coarse), static_cast<char>(fine)} +
         std::string(3072, fill);
}

void expect_refused(const TemporaryFolder& folder, Split split,
                    const std::vector<std::string>& names) {
  expect_problem(error_of<DataError>([&] { cifar100(folder.path(), split); }),
                 ErrorCode::kMalformedData, names);
}

TEST(Cifar100, HasTheFineLabelsAsClasses) {
  const TemporaryFolder folder;
  write_text(folder.path("train.bin"),
             fine_record(19, 99, 'a') + fine_record(3, 42, 'b'));
  write_text(folder.path("test.bin"), fine_record(0, 7, 'c'));
  const auto train = cifar100(folder.path(), Split::kTrain);
  ASSERT_EQ(train->size(), 2);
  EXPECT_EQ(train->classes(), 100);
  EXPECT_EQ(train->label(0), 99);
  EXPECT_EQ(train->label(1), 42);
  EXPECT_EQ(image_of(*train, 1), std::vector<uint8_t>(3072, 'b'));
  EXPECT_EQ(cifar100(folder.path(), Split::kTest)->label(0), 7);
}

TEST(Cifar100, RefusesWhatIsNotOfIt) {
  const TemporaryFolder folder;
  expect_refused(folder, Split::kTrain,
                 {folder.path(), "train.bin", "lockstep data cifar100"});
  const std::string path = folder.path("train.bin");
  write_text(path, fine_record(0, 0, 'a').substr(0, 3073));
  expect_refused(folder, Split::kTrain, {path, "3074", "3073"});
  write_text(path, fine_record(0, 0, 'a') + fine_record(20, 0, 'a'));
  expect_refused(folder, Split::kTrain, {path, "record 1", "byte 3074", "20"});
  write_text(path, fine_record(0, 100, 'a'));
  expect_refused(folder, Split::kTrain, {path, "byte 1", "100"});
  std::filesystem::create_directory(folder.path("cifar-100-binary"));
  expect_refused(folder, Split::kTest, {folder.path(), "cifar-100-binary"});
}

}  // namespace
}  // namespace lockstep::data
