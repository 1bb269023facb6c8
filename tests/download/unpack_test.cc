#include <cstdlib>
#include <filesystem>

#include <gtest/gtest.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/download/download_dataset.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::download {
namespace {

namespace fs = std::filesystem;

const RemoteFile kSmallArchive{.name = "small.tar.gz",
                               .bytes = 0,
                               .md5 = "",
                               .folder = "small",
                               .members = {{"a.bin", 1000}, {"b.txt", 10}}};

/// A folder with an archive made by a script with Python's tarfile.
class Unpack : public testing::Test {
 protected:
  // `members` is Python code that calls add(name, bytes, **fields of TarInfo).
  void make(const std::string& members) {
    write_text(folder_.path("make.py"), R"(import io, sys, tarfile
archive = tarfile.open(sys.argv[1], 'w:gz')
def add(name, content=b'', **fields):
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    archive.addfile(info, io.BytesIO(content))
)" + members + "\narchive.close()\n");
    const std::string command =
        "python3 " + folder_.path("make.py") + " " + archive();
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  std::string archive() const { return folder_.path("small.tar.gz"); }
  std::string dir() const { return folder_.path("dir"); }
  void SetUp() override { fs::create_directory(dir()); }

  void expect_refused(const std::string& members,
                      const std::vector<std::string>& names) {
    make(members);
    expect_problem(
        error_of<DataError>([&] { unpack(archive(), kSmallArchive, dir()); }),
        ErrorCode::kMalformedData, names);
    // Nothing is outside of the folder, and only complete members are in it.
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 3);
    for (const auto& entry : fs::directory_iterator(dir())) {
      const auto name = entry.path().filename();
      EXPECT_TRUE(name == "a.bin" || name == "b.txt") << name;
      EXPECT_TRUE(entry.is_regular_file() && !entry.is_symlink()) << name;
    }
  }

  TemporaryFolder folder_;
};

constexpr const char* kWhole =
    "add('small', type=tarfile.DIRTYPE)\n"
    "add('small/readme.html', b'<html>')\n"
    "add('./small/a.bin', b'abc', mode=0o7777, uid=7)\n"
    "add('small/b.txt', b'text')\n";

TEST_F(Unpack, KeepsTheMembersAlone) {
  make(kWhole);
  const auto digests = unpack(archive(), kSmallArchive, dir());
  EXPECT_EQ(content_of(dir() + "/a.bin"), "abc");
  EXPECT_EQ(content_of(dir() + "/b.txt"), "text");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir()), {}), 2);
  // In the format of sha256sum.
  EXPECT_EQ(digests.at("a.bin"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const auto mode = fs::status(dir() + "/a.bin").permissions();
  EXPECT_EQ(mode & fs::perms::set_uid, fs::perms::none);
}

TEST_F(Unpack, RefusesHostileArchives) {
  expect_refused("add('../evil', b'x')", {"small.tar.gz", "../evil"});
  expect_refused("add('small/../../evil', b'x')", {"evil"});
  expect_refused("add('/evil', b'x')", {"/evil"});
  expect_refused(
      "add('small/a.bin', type=tarfile.SYMTYPE, "
      "linkname='/etc/passwd')",
      {"a link", "small/a.bin"});
  expect_refused(
      "add('small/b.txt', b'text')\n"
      "add('small/a.bin', type=tarfile.LNKTYPE, "
      "linkname='small/b.txt')",
      {"a link"});
  expect_refused("add('small/a.bin', type=tarfile.FIFOTYPE)", {"a link"});
  expect_refused("add('small/a.bin', type=tarfile.DIRTYPE)", {"small/a.bin"});
  expect_refused("add('small/a.bin', b'x' * 1001)", {"a.bin", "1000"});
  expect_refused("add('small/more', b'x' * (2 << 20))", {"small/more"});
  expect_refused("for i in range(1001): add(f'small/{i}')", {"more files"});
  expect_refused("add('small/a.bin', b'abc')", {"no small/b.txt"});
}

TEST_F(Unpack, RefusesADamagedArchive) {
  make(kWhole);
  const std::string whole = content_of(archive());
  for (size_t size = 0; size < whole.size() - 8; size += 11) {
    write_text(archive(), whole.substr(0, size));
    expect_problem(
        error_of<DataError>([&] { unpack(archive(), kSmallArchive, dir()); }),
        ErrorCode::kMalformedData, {archive()});
  }
}

TEST_F(Unpack, ReplacesNoOtherFile) {
  make(kWhole);
  write_text(dir() + "/b.txt", "mine");
  expect_problem(
      error_of<DataError>([&] { unpack(archive(), kSmallArchive, dir()); }),
      ErrorCode::kMalformedData, {dir() + "/b.txt"});
  EXPECT_EQ(content_of(dir() + "/b.txt"), "mine");
  write_text(dir() + "/b.txt", "text");
  unpack(archive(), kSmallArchive, dir());
}

// Files that the user has put into the folder need no server.
TEST_F(Unpack, IsDoneOnceAndKnownAfterThat) {
  make(kWhole);
  RemoteFile file = kSmallArchive;
  file.bytes = static_cast<int64_t>(fs::file_size(archive()));
  Md5 md5;
  md5.add(content_of(archive()));
  file.md5 = md5.hex();
  const RemoteDataset dataset{
      .name = "small", .url = "https://127.0.0.1:1/", .files = {file}};
  const DownloadOptions options{.dir = dir()};
  fs::copy(archive(), dir() + "/small.tar.gz");
  EXPECT_EQ(download_dataset(dataset, options), Outcome::kDownloaded);
  EXPECT_EQ(content_of(dir() + "/a.bin"), "abc");
  EXPECT_TRUE(fs::exists(dir() + "/small.tar.gz"));
  EXPECT_EQ(download_dataset(dataset, options), Outcome::kWasThere);
  fs::remove(dir() + "/small.tar.gz");
  EXPECT_EQ(download_dataset(dataset, options), Outcome::kWasThere);
  const std::string check =
      "cd " + dir() + " && sha256sum --quiet -c small.sha256";
  EXPECT_EQ(std::system(check.c_str()), 0);
  write_text(dir() + "/a.bin", "abd");
  expect_problem(
      error_of<DataError>([&] { download_dataset(dataset, options); }),
      ErrorCode::kMalformedData, {dir() + "/a.bin"});
}

}  // namespace
}  // namespace lockstep::download
