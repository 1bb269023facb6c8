#include <array>
#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/loader.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/data/image_of.h"
#include "tests/data/images/tiny_images.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

// Writes two classes with three images each.
void write_folder(const TemporaryFolder& folder) {
  for (const char* split : {"train", "val"}) {
    for (const char* name : {"cat", "dog"}) {
      for (const char* image : {"1.png", "2.jpg", "3.png"}) {
        const std::string path = std::string(split) + "/" + name + "/" + image;
        const auto shade = static_cast<uint8_t>(path.size() * 9 + path[6]);
        write_text(folder.path(path), std::string(image).ends_with("png")
                                          ? png_of(20, 12, shade)
                                          : jpeg_of(20, 12, shade));
      }
    }
  }
}

void expect_refused(const TemporaryFolder& folder, Split split, ErrorCode code,
                    const std::vector<std::string>& names) {
  expect_problem(
      error_of<DataError>([&] { image_folder(folder.path(), split, 16); }),
      code, names);
}

TEST(ImageFolder, NamesTheFileThatItCannotDecode) {
  const TemporaryFolder folder;
  write_folder(folder);
  const std::string path = folder.path("train/dog/2.jpg");
  const std::string whole = content_of(path);
  const auto dataset = image_folder(folder.path(), Split::kTrain, 16);
  write_text(path, whole.substr(0, whole.size() / 2));
  const auto source = std::make_shared<ImageSource>(dataset);
  for (const int workers : {0, 3}) {
    Loader loader(source, LoaderOptions().batch_size(2).workers(workers));
    auto batch = loader.begin();
    for (int i = 0; i < 2; ++i, ++batch) EXPECT_EQ(batch->samples, 2);
    expect_problem(error_of<DataError>([&] { static_cast<void>(*batch); }),
                   ErrorCode::kMalformedData, {path});
  }
  fs::remove(path);
  expect_problem(error_of<DataError>([&] { image_of(*dataset, 4); }),
                 ErrorCode::kFileAccess, {path});
}

TEST(ImageFolder, NumbersTheClassesOfATestAsThoseThatAreTrained) {
  const TemporaryFolder folder;
  write_folder(folder);
  fs::remove_all(folder.path("val/cat"));
  const auto test = image_folder(folder.path(), Split::kTest, 16);
  EXPECT_EQ(test->classes(), 2);
  ASSERT_EQ(test->size(), 3);
  EXPECT_EQ(test->label(0), 1);
  write_text(folder.path("val/bird/1.png"), png_of(8, 8, 0));
  expect_refused(folder, Split::kTest, ErrorCode::kMalformedData,
                 {folder.path("val/bird"), "bird"});
}

TEST(ImageFolder, TestsOnValOrElseOnTest) {
  const TemporaryFolder folder;
  write_folder(folder);
  fs::rename(folder.path("val"), folder.path("test"));
  EXPECT_EQ(image_folder(folder.path(), Split::kTest, 16)->size(), 6);
  write_text(folder.path("val/dog/1.png"), png_of(8, 8, 0));
  EXPECT_EQ(image_folder(folder.path(), Split::kTest, 16)->size(), 1);
  fs::remove_all(folder.path("val"));
  fs::remove_all(folder.path("test"));
  expect_refused(folder, Split::kTest, ErrorCode::kMalformedData,
                 {folder.path(), "val or test"});
}

TEST(ImageFolder, RefusesWhatHasNoImages) {
  const TemporaryFolder folder;
  expect_refused(folder, Split::kTrain, ErrorCode::kMalformedData,
                 {folder.path(), "train"});
  fs::create_directory(folder.path("train"));
  expect_refused(folder, Split::kTrain, ErrorCode::kMalformedData,
                 {folder.path("train")});
  write_folder(folder);
  fs::create_directory(folder.path("train/.hidden"));
  expect_refused(folder, Split::kTrain, ErrorCode::kMalformedData,
                 {folder.path("train/.hidden")});
  expect_problem(
      error_of<DataError>([] { image_folder("/no/such", Split::kTrain, 16); }),
      ErrorCode::kFileAccess, {"/no/such"});
  for (const int64_t size : {0, 7, 1025}) {
    expect_problem(error_of<InvalidArgument>([&] {
                     image_folder(folder.path(), Split::kTest, size);
                   }),
                   ErrorCode::kBadOption, {std::to_string(size)});
  }
}

TEST(ImageFolder, RefusesALinkThatLeadsToItself) {
  const TemporaryFolder folder;
  write_folder(folder);
  fs::create_directory_symlink("..", folder.path("train/dog/up"));
  expect_refused(folder, Split::kTrain, ErrorCode::kFileAccess,
                 {"train", "up"});
}

TEST(ImageFolder, TellsOfFilesThatAreLeftOut) {
  const TemporaryFolder folder;
  write_folder(folder);
  write_text(folder.path("train/cat/x.webp"), "RIFF");
  const LogCapture log;
  image_folder(folder.path(), Split::kTrain, 16, /*warns=*/false);
  EXPECT_EQ(log.text(), "");
  EXPECT_EQ(image_folder(folder.path(), Split::kTrain, 16)->size(), 6);
  EXPECT_PRED2(contains, log.text(), "left out 1 file");
  EXPECT_PRED2(contains, log.text(), "cat/x.webp");
}

TEST(ImageFolder, HasAFingerprintOfNamesSizesAndPixels) {
  const TemporaryFolder folder;
  write_folder(folder);
  const auto fingerprint = [&](int64_t size) {
    return image_folder(folder.path(), Split::kTrain, size)->fingerprint();
  };
  const std::string first = fingerprint(16);
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(fingerprint(16), first);
  EXPECT_NE(fingerprint(32), first);
  write_text(folder.path("train/cat/1.png"),
             content_of(folder.path("train/cat/1.png")) + " ");
  const std::string longer = fingerprint(16);
  EXPECT_NE(longer, first);
  fs::rename(folder.path("train/cat/1.png"), folder.path("train/cat/0.png"));
  EXPECT_NE(fingerprint(16), longer);
}

}  // namespace
}  // namespace lockstep::data
