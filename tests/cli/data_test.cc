// Downloads with curl and tar, from a server on loopback.
// Tier: full. Each case starts programs.
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/process.h"
#include "lockstep/cli/data/catalog.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/cli/https_server.h"
#include "tests/cli/processes.h"
#include "tests/cli/program.h"

namespace lockstep::data_test {
namespace {

using cli::fetch_dataset;
using cli::RemoteDataset;

namespace fs = std::filesystem;

std::string random_bytes(unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(300'000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string sha256_of(const std::string& bytes) {
  Sha256 sha256;
  sha256.add(bytes);
  return sha256.hex();
}

/// A server with a dataset of one file, and a folder to download it to.
class Download : public testing::Test {
 protected:
  void SetUp() override {
    // The proxy of this host must not be used for loopback.
    ::setenv("no_proxy", "127.0.0.1", 1);
    ::setenv("CURL_CA_BUNDLE", server_.ca_file().c_str(), 1);
    server_.serve("images", content_);
    fs::create_directories(path(""));
  }

  void TearDown() override { ::unsetenv("CURL_CA_BUNDLE"); }

  RemoteDataset dataset() const {
    return {.name = "small",
            .url = "",
            .files = {{"images", static_cast<int64_t>(content_.size()),
                       sha256_of(content_)}}};
  }

  bool get(const std::string& manner) {
    return fetch_dataset(dataset(), path(""), server_.url(manner));
  }

  std::string path(const std::string& name) const {
    return folder_.path("new/data/" + name);
  }

  void expect_whole() const {
    EXPECT_TRUE(content_of(path("images")) == content_);
    EXPECT_FALSE(fs::exists(path("images.part")));
  }

  void expect_failure(const std::string& url,
                      const std::vector<std::string>& names) {
    expect_problem(
        error_of<DataError>([&] { fetch_dataset(dataset(), path(""), url); }),
        ErrorCode::kDownloadFailed, names);
    EXPECT_FALSE(fs::exists(path("images")));
  }

  std::string content_ = random_bytes(1);
  HttpsServer server_;
  TemporaryFolder folder_;
};

TEST_F(Download, GetsAFileAndThenSaysThatItIsThere) {
  for (const char* manner : {"ranges", "plain", "moved"}) {
    SCOPED_TRACE(manner);
    EXPECT_TRUE(get(manner));
    expect_whole();
    const std::string log = server_.log();
    EXPECT_FALSE(get(manner));
    EXPECT_EQ(server_.log(), log);  // no request
    fs::remove(path("images"));
  }
}

TEST_F(Download, GoesOnWhereItWasCut) {
  EXPECT_TRUE(get("cut"));
  expect_whole();
  EXPECT_PRED2(contains, server_.log(), "/cut/images bytes=150000-");
  EXPECT_PRED2(contains, server_.log(), "/cut/images bytes=225000-");
}

TEST_F(Download, BeginsAnewIfItCantContinue) {
  // A server without ranges, and parts of another file.
  write_text(path("images.part"), content_.substr(0, 1000));
  EXPECT_TRUE(get("plain"));
  expect_whole();
  const std::string other = random_bytes(2);
  for (const auto& part : {other.substr(0, 1000), other, other + "more"}) {
    fs::remove(path("images"));
    write_text(path("images.part"), part);
    EXPECT_TRUE(get("ranges"));
    expect_whole();
  }
}

TEST_F(Download, RefusesAnotherFileAndLeavesNothingOfIt) {
  const std::string other = random_bytes(3);
  for (const auto& content : {other, content_ + "x", content_.substr(1)}) {
    server_.serve("images", content);
    expect_failure(server_.url("ranges"),
                   {sha256_of(content_), "a different file", "--mirror"});
    EXPECT_FALSE(fs::exists(path("images.part")));
  }
  expect_failure(server_.url("endless"), {"a different file"});
}

TEST_F(Download, TriesAgainOnlyWhatMayPass) {
  EXPECT_TRUE(get("busy"));
  fs::remove(path("images"));
  fs::remove(server_.folder() + "/images");
  expect_failure(server_.url("ranges"), {"404", "--mirror"});
  EXPECT_EQ(count_of(server_.log(), "/ranges/images"), 1);
  expect_failure(server_.url("around"), {"redirect"});
  // Anything but HTTPS, also after a redirection.
  expect_failure(server_.url("insecure"), {"rotocol"});
  expect_failure("file://" + server_.folder() + "/", {"rotocol"});
  ::unsetenv("CURL_CA_BUNDLE");
  expect_failure(server_.url("ranges"), {"certificate", "$CURL_CA_BUNDLE"});
}

TEST_F(Download, GoesOnAfterItWasKilled) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    try {
      get("slow");
    } catch (...) {
    }
    ::_exit(0);
  }
  EXPECT_TRUE(wait_until([&] {
    std::error_code none;
    // curl keeps the last bytes in a buffer.
    return fs::file_size(path("images.part"), none) > content_.size() / 3 &&
           !none;
  }));
  EXPECT_PRED2(contains, error_of<IoError>([&] { get("slow"); }),
               "another process");
  ::kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  server_.serve("go", "");
  EXPECT_TRUE(get("slow"));
  expect_whole();
  EXPECT_PRED2(contains, server_.log(), "/slow/images -\n/slow/images bytes=1");
}

TEST_F(Download, ReplacesNoFileOfTheUser) {
  write_text(path("images"), "mine");
  expect_problem(error_of<DataError>([&] { get("ranges"); }),
                 ErrorCode::kMalformedData,
                 {path("images"), sha256_of(content_), sha256_of("mine")});
  EXPECT_EQ(content_of(path("images")), "mine");
  fs::remove(path("images"));
  ASSERT_EQ(::mkfifo(path("images").c_str(), 0600), 0);
  EXPECT_PRED2(contains, error_of<IoError>([&] { get("ranges"); }), "a pipe");
  EXPECT_EQ(server_.log(), "");
}

TEST_F(Download, SaysThatTheDiskIsFull) {
  int code = -1;
  const std::string disk = folder_.path("disk");
  fs::create_directory(disk);
  const std::string name = "train-images-idx3-ubyte.gz";
  server_.serve(name, std::string(200'000, 'x'));
  Command command;
  command.arguments = {"unshare", "-m", "sh", "-c",
                       "mount -t tmpfs -o size=64k none " + disk +
                           " || exit 77; " + kProgram + " data mnist --dir " +
                           disk + " --mirror " + server_.url("ranges")};
  const auto result = run_command(command);
  code = result.exit_code;
  if (code == 77 || code == 127 || contains(result.err, "unshare")) {
    GTEST_SKIP() << "no file system can be mounted";
  }
  EXPECT_EQ(code, 1);
  expect_problem(result.err, ErrorCode::kDownloadFailed, {"disk", name});
}

TEST(DataPrograms, ArePrintedAsCommandsIfOneIsMissing) {
  const TemporaryFolder folder;
  const std::string dir = folder.path("my data");
  const auto ended = run_lockstep({"data", "cifar10", "--dir", dir},
                                  {{"PATH", folder.path("none")}});
  EXPECT_EQ(ended.code, 1);
  expect_problem(ended.err, ErrorCode::kProcessStart, {"curl"});
  for (const char* part :
       {"curl --fail",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "sha256sum --check", "c4a38c50a1bc5f3a", "tar --extract",
        "cifar-10-batches-bin/data_batch_5.bin", "my data'"}) {
    EXPECT_PRED2(contains, ended.out, part);
  }
}

constexpr const char* kWhole =
    "add('small', type=tarfile.DIRTYPE)\n"
    "add('small/readme.html', b'<html>')\n"
    "add('small/a.bin', b'abc', mode=0o7777, uid=7)\n"
    "add('small/b.txt', b'text')\n";

/// A folder with an archive made by a script with Python's tarfile.
class Unpack : public testing::Test {
 protected:
  // `members` is Python code that calls add(name, bytes, **fields of TarInfo).
  void make(const std::string& members) {
    fs::create_directories(dir());
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

  std::string dir() const { return folder_.path("dir"); }
  std::string archive() const { return dir() + "/small.tar.gz"; }

  // Files that the user has put into the folder need no server.
  bool unpack() const {
    const std::string bytes = content_of(archive());
    return fetch_dataset(
        {.name = "small",
         .url = "",
         .files = {{.name = "small.tar.gz",
                    .bytes = static_cast<int64_t>(bytes.size()),
                    .sha256 = sha256_of(bytes),
                    .members = {"small/a.bin", "small/b.txt"}}}},
        dir(), "https://127.0.0.1:1/");
  }

  void expect_refused(const std::string& members) {
    make(members);
    expect_problem(error_of<DataError>([&] { unpack(); }),
                   ErrorCode::kMalformedData, {"small.tar.gz"});
    // Nothing is outside of the folder, and only the archive is in it.
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 2);
    EXPECT_EQ(std::distance(fs::directory_iterator(dir()), {}), 1) << members;
    EXPECT_FALSE(fs::exists("/lockstep-evil"));
  }

  TemporaryFolder folder_;
};

TEST_F(Unpack, KeepsTheMembersAndKnowsThem) {
  make(kWhole);
  EXPECT_TRUE(unpack());
  EXPECT_EQ(content_of(dir() + "/a.bin"), "abc");
  EXPECT_EQ(content_of(dir() + "/b.txt"), "text");
  const auto mode = fs::status(dir() + "/a.bin").permissions();
  EXPECT_EQ(mode & fs::perms::set_uid, fs::perms::none);
  EXPECT_FALSE(unpack());
  const std::string check =
      "cd " + dir() + " && sha256sum --quiet --strict -c small.sha256";
  EXPECT_EQ(std::system(check.c_str()), 0);
  write_text(dir() + "/a.bin", "abd");
  expect_problem(error_of<DataError>([&] { unpack(); }),
                 ErrorCode::kMalformedData, {dir() + "/a.bin"});
  EXPECT_EQ(content_of(dir() + "/a.bin"), "abd");
}

TEST_F(Unpack, RefusesHostileArchives) {
  const std::string b = "add('small/b.txt', b'text')\n";
  for (const char* members :
       {"add('../evil', b'x')", "add('small/../../evil', b'x')",
        "add('/lockstep-evil', b'x')",
        "add('small/a.bin', type=tarfile.SYMTYPE, linkname='/etc/passwd')",
        "add('small/a.bin', type=tarfile.LNKTYPE, linkname='small/b.txt')",
        "add('small/a.bin', type=tarfile.FIFOTYPE)",
        "add('small/a.bin', type=tarfile.DIRTYPE)\n"
        "add('small/a.bin/../../../evil', b'x')",
        "add('small/a.bin', type=tarfile.SYMTYPE, linkname='../..')\n"
        "add('small/a.bin/evil', b'x')"}) {
    SCOPED_TRACE(members);
    expect_refused(members + ("\n" + b));
  }
  expect_refused("add('small/a.bin', b'abc')");
}

TEST_F(Unpack, RefusesADamagedArchive) {
  make(kWhole);
  const std::string whole = content_of(archive());
  for (size_t size = 0; size < whole.size() - 8; size += whole.size() / 8) {
    write_text(archive(), whole.substr(0, size));
    expect_problem(error_of<DataError>([&] { unpack(); }),
                   ErrorCode::kMalformedData, {archive()});
  }
}

}  // namespace
}  // namespace lockstep::data_test
