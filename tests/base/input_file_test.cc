#include "lockstep/base/input_file.h"

#include <filesystem>
#include <string>
#include <sys/stat.h>

#include <gtest/gtest.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "tests/base/is_error.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

class InputFile : public testing::Test {
 protected:
  InputFile() {
    write_text(folder_.path("file"), "content");
    std::filesystem::create_symlink("file", folder_.path("link"));
    EXPECT_EQ(::mkfifo(folder_.path("pipe").c_str(), 0600), 0);
  }

  static std::string refusal(const std::string& path,
                             Links links = Links::kFollow) {
    return error_of<IoError>([&] { open_regular_file(path, links); });
  }

  TemporaryFolder folder_;
};

TEST_F(InputFile, IsNoPipeNoDeviceAndNoFolder) {
  EXPECT_TRUE(is_error(refusal(folder_.path("pipe")), ErrorCode::kFileAccess,
                       {folder_.path("pipe"), "a pipe"}));
  EXPECT_TRUE(is_error(refusal("/dev/zero"), ErrorCode::kFileAccess,
                       {"/dev/zero", "a device"}));
  EXPECT_TRUE(is_error(refusal(folder_.path()), ErrorCode::kFileAccess,
                       {folder_.path(), "a folder"}));
  EXPECT_TRUE(is_error(refusal(folder_.path("none")), ErrorCode::kFileAccess,
                       {folder_.path("none"), "No such file"}));
}

TEST_F(InputFile, MayBeALinkUnlessLinksAreRefused) {
  EXPECT_EQ(open_regular_file(folder_.path("link")).status.st_size, 7);
  EXPECT_EQ(
      open_regular_file(folder_.path("file"), Links::kRefuse).status.st_size,
      7);
  EXPECT_TRUE(is_error(refusal(folder_.path("link"), Links::kRefuse),
                       ErrorCode::kFileAccess, {folder_.path("link")}));
}

TEST_F(InputFile, IsReadInPartsToItsEnd) {
  std::string bytes;
  for (int i = 0; i < 3'000'000; ++i) bytes += static_cast<char>(i * 7);
  write_text(folder_.path("large"), bytes);
  std::string read;
  int parts = 0;
  read_in_parts(folder_.path("large"), [&](std::span<const std::byte> part) {
    read.append(reinterpret_cast<const char*>(part.data()), part.size());
    ++parts;
  });
  EXPECT_TRUE(read == bytes);
  EXPECT_GT(parts, 1);
  EXPECT_THROW(read_in_parts(folder_.path("pipe"), [](auto) {}), IoError);
  EXPECT_THROW(read_file(folder_.path("pipe"), 100), IoError);
}

}  // namespace
}  // namespace lockstep
