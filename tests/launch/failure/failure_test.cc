#include "lockstep/launch/failure/failure.h"

#include <cmath>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <sys/stat.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/launch/failure/clock.h"
#include "lockstep/launch/failure/error_file.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

// An error file as torch.distributed.elastic.multiprocessing.errors writes it.
constexpr const char* kTorchruns =
    R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack":)"
    R"( "Traceback\n  x.py\nValueError: no\n", "timestamp": "1700000000"}}})";

TEST(ErrorFile, ReadsTorchrunsForm) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  write_text(path, kTorchruns);
  const auto record = read_error_file(path);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->message, "ValueError: no");
  EXPECT_EQ(record->callstack, "Traceback\n  x.py\nValueError: no\n");
  EXPECT_EQ(record->time_s, 1700000000);
}

TEST(ErrorFile, TellsTheOrderWithinASecondByTheFilesOwnTime) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  write_error_file(path,
                   {.message = "x", .callstack = {}, .time_s = unix_time_s()});
  const auto record = read_error_file(path);
  ASSERT_TRUE(record);
  EXPECT_NEAR(record->time_s, unix_time_s(), 30);
  EXPECT_NE(record->time_s, std::floor(record->time_s));
}

TEST(ErrorFile, TakesAPlainString) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  write_text(path, R"({"message": "gone", "timestamp": 1700000000})");
  EXPECT_EQ(read_error_file(path)->message, "gone");
  EXPECT_EQ(read_error_file(path)->time_s, 1700000000);
}

TEST(ErrorFile, IsNothingIfItCanNotBeUsed) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  EXPECT_FALSE(read_error_file(path));
  for (const std::string& bad :
       {std::string(), std::string("{"), std::string("[]"), std::string("7"),
        std::string(R"({"mess": "a"})"), std::string(2 << 20, ' '),
        std::string(500'000, '['), std::string("\xff\xfe{")}) {
    write_text(path, bad);
    EXPECT_FALSE(read_error_file(path)) << bad.substr(0, 20);
  }
}

TEST(ErrorFile, NeitherFollowsLinksNorWaitsForAPipe) {
  const TemporaryFolder folder;
  write_text(folder.path("real.json"), kTorchruns);
  std::filesystem::create_symlink(folder.path("real.json"),
                                  folder.path("link.json"));
  EXPECT_FALSE(read_error_file(folder.path("link.json")));
  ASSERT_EQ(::mkfifo(folder.path("pipe.json").c_str(), 0600), 0);
  EXPECT_FALSE(read_error_file(folder.path("pipe.json")));
}

TEST(ErrorFile, IsCleanedOfControlCharacters) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  write_text(path, json{{"message", "a\x1b]0;x\x07"}}.dump());
  EXPECT_EQ(read_error_file(path)->message, "a?]0;x?");
}

TEST(RecordError, WritesWhatTheLauncherReads) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  record_error(TrainError(
      {.code = ErrorCode::kNotFinite, .what = "the loss is not finite"}));
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  const auto root = json::parse(content_of(path));
  EXPECT_EQ(root["message"]["message"],
            "lockstep::TrainError: [train] the loss is not finite "
            "[not-finite]");
  EXPECT_EQ(root["message"]["extraInfo"]["code"], "not-finite");
  EXPECT_EQ(read_error_file(path)->code, "not-finite");
  EXPECT_TRUE(root["message"]["extraInfo"]["timestamp"].is_string());
  record_error(std::runtime_error("without a launcher: nothing"));
}

Failure failure(int rank, double time_s, bool is_cause = true) {
  Failure made;
  made.rank = rank;
  made.host = "h";
  made.exit_code = 1;
  made.time_s = time_s;
  made.is_cause = is_cause;
  return made;
}

TEST(RootCause, IsTheEarliestThatWasNotEndedByTheAgent) {
  EXPECT_EQ(root_cause({}), nullptr);
  EXPECT_EQ(root_cause({failure(0, 3), failure(1, 2), failure(2, 4)})->rank, 1);
  EXPECT_EQ(root_cause({failure(0, 1, false), failure(1, 2)})->rank, 1);
}

// A rank that runs out of memory may report it after the rank that misses it.
TEST(RootCause, IsNoConsequenceOfAnother) {
  auto missed = failure(0, 1);
  missed.is_consequence = true;
  EXPECT_EQ(root_cause({missed, failure(1, 2)})->rank, 1);
  EXPECT_EQ(root_cause({missed, failure(1, 2, false)})->rank, 0);
  auto later = failure(1, 2);
  later.is_consequence = true;
  EXPECT_EQ(root_cause({missed, later})->rank, 0);
}

TEST(RootCause, MayBeToldAfterTheEndHadBegun) {
  auto missed = failure(0, 1);
  missed.is_consequence = true;
  auto late = failure(1, 2, false);
  late.message = "out of memory";
  std::vector<Failure> both{missed, late};
  admit_late_causes(both);
  EXPECT_EQ(root_cause(both)->rank, 1);
  // The message came after the agent's signal. It explains nothing if the cause
  // is already known or nothing else failed.
  both = {failure(0, 1), late};
  admit_late_causes(both);
  EXPECT_EQ(root_cause(both)->rank, 0);
  both = {late};
  admit_late_causes(both);
  EXPECT_FALSE(both[0].is_cause);
  late.message.clear();
  both = {missed, late};
  admit_late_causes(both);
  EXPECT_EQ(root_cause(both)->rank, 0);
}

TEST(ExitCodeOf, IsThatOfTheRootCause) {
  EXPECT_EQ(exit_code_of({}), kExitFailed);
  Failure trained = failure(0, 1);
  trained.exit_code = kExitTrainingFailed;
  Failure other = failure(1, 2);
  other.exit_code = 1;
  EXPECT_EQ(exit_code_of({trained, other}), kExitTrainingFailed);
  other.time_s = 0.5;
  EXPECT_EQ(exit_code_of({trained, other}), kExitFailed);
  // The root cause reported its error, but the agent ended it before it could
  // exit.
  Failure ended = failure(1, 0.5);
  ended.signal = SIGTERM;
  ended.message = "lockstep::ParallelError: the same";
  EXPECT_EQ(exit_code_of({trained, ended}), kExitTrainingFailed);
  EXPECT_EQ(exit_code_of({other, ended}), kExitFailed);
  Failure misused = failure(2, 0.1);
  misused.exit_code = kExitBadUsage;
  EXPECT_EQ(exit_code_of({trained, misused}), kExitBadUsage);
  // A process that was killed reported nothing.
  ended.message.clear();
  EXPECT_EQ(exit_code_of({trained, ended}), kExitFailed);
}

TEST(ErrorFile, TellsALostPeerFromAnErrorOfTheRankItself) {
  const TemporaryFolder folder;
  const auto path = folder.path("error.json");
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  record_error(CommError(
      {.code = ErrorCode::kCollectiveFailed, .what = "rank 1 ended"}));
  EXPECT_TRUE(read_error_file(path)->is_of_peer);
  record_error(TrainError(
      {.code = ErrorCode::kNotFinite, .what = "the loss is not finite"}));
  EXPECT_FALSE(read_error_file(path)->is_of_peer);
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  write_text(path, R"({"message": "gone", "lost_peer": "yes"})");
  EXPECT_FALSE(read_error_file(path)->is_of_peer);
}

TEST(FailureReport, HasTheRootCauseLast) {
  auto first = failure(3, 1700000000.25);
  first.signal = SIGSEGV;
  first.last_lines = {"almost there", "there"};
  auto later = failure(1, 1700000001);
  later.message = "ConnectionError: peer gone\nmore";
  const auto text = failure_report({later, first});
  const auto other = text.find("ConnectionError: peer gone");
  const auto root = text.find("rank 3 ");
  ASSERT_NE(other, std::string::npos) << text;
  ASSERT_NE(root, std::string::npos) << text;
  EXPECT_LT(other, root);
  EXPECT_PRED2(contains, text, "SIGSEGV");
  EXPECT_PRED2(contains, text, "      there\n");
}

TEST(FailureReport, SaysOnceWhatAllRanksSay) {
  auto first = failure(0, 1);
  first.message = "the loss is not finite";
  auto later = failure(1, 2);
  later.message = first.message;
  const auto text = failure_report({first, later});
  const auto at = text.find(first.message);
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.find(first.message, at + 1), std::string::npos) << text;
  EXPECT_PRED2(contains, text, "rank 1 on h");
}

TEST(Failures, SurviveTheWayToAnotherAgent) {
  auto sent = failure(5, 12.5);
  sent.message = "m";
  sent.is_consequence = true;
  sent.last_lines = {"a", "b"};
  const auto text = to_json(std::vector{sent}).dump();
  const auto received = failures_from_json(text);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(to_json(received).dump(), text);
  EXPECT_TRUE(failures_from_json("[{}, 1, \"x\"]").empty());
  EXPECT_TRUE(failures_from_json("{").empty());
}

}  // namespace
}  // namespace lockstep::launch
