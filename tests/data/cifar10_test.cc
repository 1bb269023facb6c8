#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/data/datasets.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/data/image_of.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// Returns an image of label `label` with bytes that count up from `first`.
std::string record(int label, int first) {
  std::string bytes(1 + 3072, static_cast<char>(label));
  for (size_t i = 1; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(first + static_cast<int>(i) - 1);
  }
  return bytes;
}

void expect_error(const std::string& dir, Split split, ErrorCode code,
                  const std::vector<std::string>& names) {
  expect_problem(error_of<DataError>([&] { cifar10(dir, split); }), code,
                 names);
}

TEST(Cifar10, ReadsEveryTrainingFileInTheOrderOfTheirNames) {
  const TemporaryFolder folder;
  write_text(folder.path("data_batch_2.bin"), record(7, 70));
  write_text(folder.path("data_batch_1.bin"), record(3, 30) + record(9, 90));
  write_text(folder.path("test_batch.bin"), record(5, 50));
  write_text(folder.path("batches.meta.txt"), "airplane\n");
  const auto train = cifar10(folder.path(), Split::kTrain);
  ASSERT_EQ(train->size(), 3);
  const int labels[] = {3, 9, 7};
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(train->label(i), labels[i]);
    const auto image = image_of(*train, i);
    ASSERT_EQ(image.size(), 3072u);
    EXPECT_EQ(image[0], labels[i] * 10);
    EXPECT_EQ(image[3071], (labels[i] * 10 + 3071) % 256);
  }
  const auto test = cifar10(folder.path(), Split::kTest);
  ASSERT_EQ(test->size(), 1);
  EXPECT_EQ(test->label(0), 5);
}

TEST(Cifar10, WarnsOfMissingTrainingFiles) {
  const TemporaryFolder folder;
  for (const char* number : {"1", "2", "4"}) {
    write_text(folder.path(std::string("data_batch_") + number + ".bin"),
               record(3, 30));
  }
  write_text(folder.path("test_batch.bin"), record(5, 50));
  {
    const LogCapture log;
    cifar10(folder.path(), Split::kTrain);
    EXPECT_PRED2(contains, log.text(),
                 "[data] folder " + folder.path() +
                     " lacks data_batch_3.bin, data_batch_5.bin of CIFAR-10: "
                     "there are 3 images to train on, of 50,000");
  }
  const LogCapture log;
  cifar10(folder.path(), Split::kTest);
  cifar10(folder.path(), Split::kTrain, /*warns=*/false);
  open({.name = "cifar10", .dir = folder.path(), .warns = false},
       Split::kTrain);
  EXPECT_EQ(log.text(), "");
  write_text(folder.path("data_batch_3.bin"), record(3, 30));
  write_text(folder.path("data_batch_5.bin"), record(3, 30));
  cifar10(folder.path(), Split::kTrain);
  cifar10(folder.path() + "/", Split::kTrain);
  EXPECT_EQ(log.text(), "");
}

TEST(Cifar10, RefusesAMissingFolder) {
  expect_error("", Split::kTrain, ErrorCode::kFileAccess, {"--data-dir"});
  expect_error("/no/such/folder", Split::kTrain, ErrorCode::kFileAccess,
               {"/no/such/folder"});
}

TEST(Cifar10, RefusesAFolderWithoutImages) {
  const TemporaryFolder folder;
  expect_error(folder.path(), Split::kTrain, ErrorCode::kMalformedData,
               {folder.path(), "data_batch_*.bin"});
  write_text(folder.path("data_batch_1.bin"), record(0, 0));
  expect_error(folder.path(), Split::kTest, ErrorCode::kMalformedData,
               {folder.path(), "test_batch.bin"});
}

TEST(Cifar10, RefusesAFileInPlaceOfTheFolder) {
  const TemporaryFolder folder;
  write_text(folder.path("file"), "");
  expect_error(folder.path("file"), Split::kTrain, ErrorCode::kFileAccess,
               {folder.path("file")});
}

TEST(Cifar10, KnowsThePythonFormAndTheFolderAbove) {
  const TemporaryFolder folder;
  write_text(folder.path("data_batch_1"), "pickled");
  expect_error(folder.path(), Split::kTrain, ErrorCode::kMalformedData,
               {folder.path(), "Python"});
  const TemporaryFolder above;
  fs::create_directory(above.path("cifar-10-batches-bin"));
  expect_error(above.path(), Split::kTrain, ErrorCode::kMalformedData,
               {above.path(), "cifar-10-batches-bin"});
}

TEST(Cifar10, RefusesATruncatedFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("data_batch_1.bin");
  write_text(path, (record(0, 0) + record(1, 1)).substr(0, 5000));
  expect_error(folder.path(), Split::kTrain, ErrorCode::kMalformedData,
               {path, "6146", "5000"});
}

TEST(Cifar10, RefusesAnEmptyFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("test_batch.bin");
  write_text(path, "");
  expect_error(folder.path(), Split::kTest, ErrorCode::kMalformedData,
               {path, "3073"});
}

TEST(Cifar10, RefusesALabelOverNineAndNamesTheRecord) {
  const TemporaryFolder folder;
  const std::string path = folder.path("data_batch_1.bin");
  write_text(path, record(9, 0) + record(9, 0) + record(10, 0));
  expect_error(folder.path(), Split::kTrain, ErrorCode::kMalformedData,
               {path, "record 2", "byte 6146", "10"});
}

TEST(Cifar10, RefusesAFolderInPlaceOfAFile) {
  const TemporaryFolder folder;
  fs::create_directory(folder.path("data_batch_1.bin"));
  expect_error(folder.path(), Split::kTrain, ErrorCode::kFileAccess,
               {folder.path("data_batch_1.bin")});
}

TEST(Cifar10, RefusesAFileThatItMayNotRead) {
  const TemporaryFolder folder;
  const std::string path = folder.path("data_batch_1.bin");
  write_text(path, record(0, 0));
  fs::permissions(folder.path(), fs::perms(0755));
  fs::permissions(path, fs::perms::none);
  // Root may read everything, so the test acts as nobody for a moment.
  constexpr uid_t kNobody = 65534;
  const uid_t user = geteuid();
  if (user == 0 && seteuid(kNobody) != 0) {
    GTEST_SKIP() << "root may read every file, and can't be another user";
  }
  expect_error(folder.path(), Split::kTrain, ErrorCode::kFileAccess,
               {path, "Permission denied"});
  ASSERT_EQ(seteuid(user), 0);
}

TEST(Cifar10, RefusesABrokenLink) {
  const TemporaryFolder folder;
  fs::create_symlink("/no/such/file", folder.path("data_batch_1.bin"));
  expect_error(folder.path(), Split::kTrain, ErrorCode::kFileAccess,
               {folder.path("data_batch_1.bin")});
}

TEST(Cifar10, HasTheMeanAndDeviationOfTheRealImages) {
  const char* named = std::getenv("LOCKSTEP_CIFAR10_DIR");
  const std::string dir =
      named ? named : LOCKSTEP_SOURCE_DIR "/../shared/data/cifar10";
  if (!fs::exists(dir)) {
    GTEST_SKIP() << "no CIFAR-10 in " << dir << " (LOCKSTEP_CIFAR10_DIR)";
  }
  const auto train = cifar10(dir, Split::kTrain);
  const auto test = cifar10(dir, Split::kTest);
  EXPECT_GE(train->size(), 10'000);
  EXPECT_GE(test->size(), 2'000);
  for (int64_t c = 0; c < 3; ++c) {
    double sum = 0;
    double squares = 0;
    for (int64_t i = 0; i < train->size(); ++i) {
      const auto image = image_of(*train, i);
      for (const uint8_t value : std::span(image).subspan(c * 1024, 1024)) {
        sum += value / 255.0;
        squares += value / 255.0 * (value / 255.0);
      }
    }
    const double count = static_cast<double>(train->size()) * 1024;
    const double mean = sum / count;
    EXPECT_NEAR(mean, train->mean()[c], 0.01);
    EXPECT_NEAR(std::sqrt(squares / count - mean * mean), train->stddev()[c],
                0.01);
  }
  std::vector<int> counts(10);
  for (int64_t i = 0; i < test->size(); ++i) ++counts[test->label(i)];
  for (const int count : counts) EXPECT_GT(count, test->size() / 20);
}

}  // namespace
}  // namespace lockstep::data
