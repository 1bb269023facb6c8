#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/download/download_dataset.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/download/https_server.h"

namespace lockstep::download {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBytes = 300'000;

std::string random_bytes(unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(kBytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

std::string md5_of(const std::string& bytes) {
  Md5 md5;
  md5.add(bytes);
  return md5.hex();
}

/// A server with a dataset of one file, and a folder to download it to.
class Download : public testing::Test {
 protected:
  void SetUp() override {
    // The proxy of this host must not be used for loopback.
    ::setenv("no_proxy", "127.0.0.1", 1);
    server_.serve("images", content_);
  }

  RemoteDataset dataset(const std::string& manner) const {
    return {.name = "small",
            .url = server_.url(manner),
            .files = {{"images", static_cast<int64_t>(content_.size()),
                       md5_of(content_)}}};
  }

  DownloadOptions options() {
    DownloadOptions options{.dir = folder_.path("new/data")};
    options.fetch.ca_file = server_.ca_file();
    options.fetch.backoff_s = 0.01;
    options.fetch.say = [this](const std::string& line) {
      said_ += line + "\n";
    };
    return options;
  }

  Outcome get(const std::string& manner) {
    return download_dataset(dataset(manner), options());
  }

  std::string path(const std::string& name) const {
    return folder_.path("new/data/" + name);
  }

  void expect_whole() const {
    EXPECT_TRUE(content_of(path("images")) == content_);
    EXPECT_FALSE(fs::exists(path("images.part")));
    EXPECT_FALSE(fs::exists(path("images.part.version")));
  }

  void expect_failure(const std::string& manner,
                      const std::vector<std::string>& names) {
    expect_problem(error_of<DataError>([&] { get(manner); }),
                   ErrorCode::kDownloadFailed, names);
    EXPECT_FALSE(fs::exists(path("images")));
  }

  // Leaves a part as a killed process does.
  void leave_part(const std::string& bytes, const std::string& version = "") {
    write_text(path("images.part"), bytes);
    if (!version.empty()) write_text(path("images.part.version"), version);
  }

  /// Returns the ETag of https_server.py.
  static std::string tag_of(const std::string& content) {
    Sha256 sha256;
    sha256.add(content);
    return '"' + sha256.hex().substr(0, 16) + '"';
  }

  std::string content_ = random_bytes(1);
  HttpsServer server_;
  TemporaryFolder folder_;
  std::string said_;
};

TEST_F(Download, GetsAFileAndThenSaysThatItIsThere) {
  for (const char* manner : {"ranges", "plain", "moved"}) {
    SCOPED_TRACE(manner);
    EXPECT_EQ(get(manner), Outcome::kDownloaded);
    expect_whole();
    const std::string log = server_.log();
    EXPECT_EQ(get(manner), Outcome::kWasThere);
    EXPECT_EQ(server_.log(), log);  // no request
    fs::remove(path("images"));
  }
  EXPECT_EQ(said_, "");
}

TEST_F(Download, GoesOnWhereItWasCut) {
  EXPECT_EQ(get("cut"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_PRED2(contains, server_.log(), "/cut/images bytes=150000-");
  EXPECT_PRED2(contains, server_.log(), "/cut/images bytes=225000-");
  EXPECT_PRED2(contains, said_, "trying again");
}

TEST_F(Download, GoesOnWithWhatAnEarlierProcessLeft) {
  leave_part(content_.substr(0, 1000), tag_of(content_));
  EXPECT_EQ(get("ranges"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_EQ(server_.log(), "/ranges/images bytes=1000-\n");
  fs::remove(path("images"));
  leave_part(content_);  // only the check remained
  const std::string log = server_.log();
  EXPECT_EQ(get("ranges"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_EQ(server_.log(), log);
}

TEST_F(Download, BeginsAnewWhereTheServerSendsWholeFilesOnly) {
  leave_part(content_.substr(0, 1000));
  EXPECT_EQ(get("plain"), Outcome::kDownloaded);
  expect_whole();
}

TEST_F(Download, BeginsAnewIfTheFileHasChanged) {
  const std::string old = random_bytes(2);
  leave_part(old.substr(0, 1000), tag_of(old));
  EXPECT_EQ(get("ranges"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_EQ(server_.log(), "/ranges/images bytes=1000-\n");
  fs::remove(path("images"));
  leave_part(old + "longer than the file");
  EXPECT_EQ(get("ranges"), Outcome::kDownloaded);
  expect_whole();
}

TEST_F(Download, BeginsAnewIfThePartWasOfAnotherFileAfterAll) {
  leave_part(random_bytes(2).substr(0, 1000));
  EXPECT_EQ(get("unnamed"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_EQ(server_.log(), "/unnamed/images bytes=1000-\n/unnamed/images -\n");
}

TEST_F(Download, RefusesAnotherFileAndLeavesNothingOfIt) {
  server_.serve("images", random_bytes(3));
  expect_failure("ranges", {"images", md5_of(content_), md5_of(random_bytes(3)),
                            "--mirror"});
  EXPECT_FALSE(fs::exists(path("images.part")));
  server_.serve("images", content_ + "x");
  expect_failure("ranges", {"300001 bytes", "300000"});
  expect_failure("endless", {"more than the 300000 bytes"});
  server_.serve("images", content_.substr(1));
  expect_failure("plain", {"299999 bytes"});
}

TEST_F(Download, TrustsNoServerWithoutACertificateThatItKnows) {
  auto untrusting = options();
  untrusting.fetch.ca_file.clear();
  expect_problem(error_of<DataError>(
                     [&] { download_dataset(dataset("ranges"), untrusting); }),
                 ErrorCode::kDownloadFailed, {"not trusted", "--ca-file"});
  untrusting.fetch.ca_file = "/no/such.pem";
  expect_problem(error_of<DataError>(
                     [&] { download_dataset(dataset("ranges"), untrusting); }),
                 ErrorCode::kDownloadFailed, {"/no/such.pem"});
  EXPECT_EQ(server_.log(), "");
}

TEST_F(Download, RefusesAnythingButHttps) {
  expect_failure("insecure", {"only https://"});
  auto plain = dataset("ranges");
  plain.url.replace(0, 5, "http");
  expect_problem(
      error_of<DataError>([&] { download_dataset(plain, options()); }),
      ErrorCode::kDownloadFailed, {"only https://"});
  plain.url = "file://" + server_.folder() + "/";
  expect_problem(
      error_of<DataError>([&] { download_dataset(plain, options()); }),
      ErrorCode::kDownloadFailed, {"only https://"});
}

TEST_F(Download, TriesAgainOnlyWhatMayPass) {
  EXPECT_EQ(get("busy"), Outcome::kDownloaded);
  EXPECT_PRED2(contains, said_, "503");
  fs::remove(path("images"));
  said_.clear();
  fs::remove(server_.folder() + "/images");
  expect_failure("ranges", {"404", "--mirror"});
  expect_failure("around", {"edirect"});
  EXPECT_EQ(said_, "");
}

TEST_F(Download, GivesUpAServerThatStalls) {
  auto impatient = options();
  impatient.fetch.attempts = 1;
  impatient.fetch.stall_timeout_s = 2;
  for (const char* manner : {"silent", "stalled"}) {
    expect_problem(error_of<DataError>(
                       [&] { download_dataset(dataset(manner), impatient); }),
                   ErrorCode::kDownloadFailed, {"2.00 s"});
  }
  EXPECT_EQ(fs::file_size(path("images.part")), 1000u);
}

// Neither case may last forever.
TEST_F(Download, GivesUpAServerThatNeverBeginsOrSendsAByteNowAndThen) {
  for (const char* manner : {"announcing", "trickling"}) {
    auto impatient = options();
    impatient.fetch.attempts = 2;
    impatient.fetch.connect_timeout_s = 1;
    impatient.fetch.stall_timeout_s = 1;
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    impatient.fetch.stop = [&] {
      return std::chrono::steady_clock::now() > deadline;
    };
    expect_problem(error_of<DataError>(
                       [&] { download_dataset(dataset(manner), impatient); }),
                   ErrorCode::kDownloadFailed, {"images"});
  }
}

TEST_F(Download, DoesNotWaitForAPipeInPlaceOfAFile) {
  fs::create_directories(path(""));
  ASSERT_EQ(::mkfifo(path("images").c_str(), 0600), 0);
  expect_problem(error_of<IoError>([&] { get("ranges"); }),
                 ErrorCode::kFileAccess, {path("images"), "a pipe"});
  EXPECT_EQ(server_.log(), "");
}

TEST_F(Download, LeavesWhatItHasWhenItIsInterrupted) {
  auto interrupted = options();
  interrupted.fetch.stop = [&] {
    std::error_code none;
    return fs::file_size(path("images.part"), none) == kBytes / 2;
  };
  expect_problem(error_of<DataError>(
                     [&] { download_dataset(dataset("slow"), interrupted); }),
                 ErrorCode::kInterrupted, {"images", "continues there"});
  server_.serve("go", "");
  EXPECT_EQ(get("slow"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_PRED2(contains, server_.log(), "bytes=150000-");
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
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::error_code none;
  while (fs::file_size(path("images.part"), none) != kBytes / 2 &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  server_.serve("go", "");
  EXPECT_EQ(get("slow"), Outcome::kDownloaded);
  expect_whole();
  EXPECT_EQ(server_.log(), "/slow/images -\n/slow/images bytes=150000-\n");
}

TEST_F(Download, LetsOneProcessAtATimeWorkInAFolder) {
  std::string said;
  std::atomic<bool> is_waiting = false;
  auto first = options();
  first.begin = [&](const RemoteFile&, const std::string&) {
    // Continues when the second process waits.
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!is_waiting && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  };
  std::thread other([&] {
    auto second = options();
    second.fetch.say = [&](const std::string& line) {
      said += line;
      is_waiting = true;
    };
    while (!fs::exists(path(".lockstep-download.lock"))) {
      std::this_thread::yield();
    }
    download_dataset(dataset("ranges"), second);
  });
  download_dataset(dataset("ranges"), first);
  other.join();
  expect_whole();
  // The second process found the file there.
  EXPECT_EQ(server_.log(), "/ranges/images -\n");
}

TEST_F(Download, WaitsForAnotherProcessUpToItsDeadline) {
  auto outer = options();
  auto inner = options();
  inner.lock_timeout_s = 0.1;
  std::string message;
  outer.begin = [&](const RemoteFile&, const std::string&) {
    message = error_of<DataError>(
        [&] { download_dataset(dataset("ranges"), inner); });
  };
  download_dataset(dataset("ranges"), outer);
  expect_problem(message, ErrorCode::kFileAccess, {path("").substr(0, 10)});
  EXPECT_PRED2(contains, said_, "another process");
}

TEST_F(Download, ReplacesNoFileOfTheUser) {
  write_text(path("images"), "mine");
  expect_problem(error_of<DataError>([&] { get("ranges"); }),
                 ErrorCode::kMalformedData,
                 {path("images"), md5_of(content_), md5_of("mine")});
  EXPECT_EQ(content_of(path("images")), "mine");
  EXPECT_EQ(server_.log(), "");
}

TEST_F(Download, AsksForSpaceBeforeItBegins) {
  auto huge = dataset("ranges");
  huge.files[0].bytes = int64_t{1} << 60;
  expect_problem(error_of<IoError>([&] { download_dataset(huge, options()); }),
                 ErrorCode::kFileAccess, {"space", folder_.path()});
  EXPECT_EQ(server_.log(), "");
}

TEST_F(Download, TakesAMirror) {
  auto gone = dataset("ranges");
  gone.url = "https://127.0.0.1:1/";
  auto mirrored = options();
  mirrored.mirror = server_.url("plain");
  mirrored.mirror.pop_back();  // removes the slash
  EXPECT_EQ(download_dataset(gone, mirrored), Outcome::kDownloaded);
  expect_whole();
}

}  // namespace
}  // namespace lockstep::download
