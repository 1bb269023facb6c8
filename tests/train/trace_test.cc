// Tests what a run records of its steps, and the file made from the records.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/train/rank_trace.h"
#include "lockstep/train/record/trace_recorder.h"
#include "lockstep/train/run/run_training.h"
#include "tests/base/expect_problem.h"
#include "tests/checkpoint/python.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

ImageTraining small_run(const std::string& trace) {
  ImageTraining options = sharded_run();
  options.data.samples = 200;
  options.batch_size(32);
  options.max_steps(6);
  options.evaluation().enabled(false);
  options.log().trace(trace);
  options.log().trace_steps(3);
  return options;
}

/// Returns the findings of an independent reader of the file.
std::string read_strictly(const std::string& path) {
  return run_python(
      content_of(LOCKSTEP_SOURCE_DIR "/tests/train/check_trace.py"), path);
}

RankTrace canned(int64_t rank, std::vector<TraceLog::Span> spans) {
  return {.rank = rank,
          .host = "host",
          .pid = 7,
          .devices = "cpu:0",
          .clock = "clock",
          .log = {.lanes = {"main"}, .spans = std::move(spans)}};
}

TraceLog::Span step(int64_t index, int64_t begin_ns, int64_t end_ns) {
  return {.name = "step",
          .category = TraceCategory::kStep,
          .index = index,
          .begin_ns = begin_ns,
          .end_ns = end_ns};
}

TraceLog::Span work(int64_t begin_ns, int64_t end_ns) {
  return {.name = "forward", .begin_ns = begin_ns, .end_ns = end_ns};
}

class Trace : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string(LOCKSTEP_TEST_PYTHON).empty()) {
      GTEST_SKIP() << "the build knows no Python";
    }
  }
};

TEST_F(Trace, HoldsTheLastStepsOfEveryRank) {
  const TemporaryFolder folder;
  for (const std::string backend : {"shm", "tcp"}) {
    const std::string path = folder.path("trace.json");
    // Over tcp that of a bucket and that of a large gradient, during the
    // backward, and that after it.
    const std::string sums = backend == "shm" ? "x3" : "x9";
    distributed(small_run(path), 2, backend);
    const std::string found = read_strictly(path);
    for (const char* rank : {"rank 0: ", "rank 1: "}) {
      // Steps of two shards each.
      EXPECT_PRED2(contains, found,
                   rank +
                       std::string("steps 3-5; lanes main, cpu:0, "
                                   "all-reduce; spans all-reduce ") +
                       sums + ", backward x6");
    }
    EXPECT_PRED2(contains, found, "forward x6");
    EXPECT_PRED2(contains, found, "step x3");
    EXPECT_PRED2(contains, found, "wait x");
  }
}

TEST_F(Trace, IsOfOneProcessToo) {
  const TemporaryFolder folder;
  const std::string path = folder.path("trace.json");
  ImageTraining options = small_run(path);
  run_training(options);
  EXPECT_PRED2(contains, read_strictly(path),
               "rank 0: steps 3-5; lanes main, cpu:0; spans backward x12");
  if (allowed_cores().size() < 2) return;
  options.strategy(Strategy::kDataParallelClassic);
  options.devices(devices("2xcpu"));
  run_training(options);
  EXPECT_PRED2(contains, read_strictly(path), "lanes main, cpu:");
}

TEST_F(Trace, LeavesOutTheFirstStepUnlessThereIsNoOther) {
  const TemporaryFolder folder;
  ImageTraining options = small_run(folder.path("trace.json"));
  options.max_steps(1);
  run_training(options);
  EXPECT_PRED2(contains, read_strictly(options.log().trace()), "steps 0-0");
  options.max_steps(3);
  run_training(options);
  const std::string found = read_strictly(options.log().trace());
  EXPECT_PRED2(contains, found, "steps 1-2");
  EXPECT_PRED2(contains, found, "data x2");
}

TEST(TracedRun, GivesTheSameBits) {
  const TemporaryFolder folder;
  const auto traced =
      distributed(small_run(folder.path("trace.json")), 2, "shm");
  const auto other = distributed(small_run(""), 2, "shm");
  EXPECT_EQ(traced.parameter_sha256, other.parameter_sha256);
}

TEST(TracedRun, FindsOutFirstThatItCantWrite) {
  ImageTraining options = small_run("/no/such/folder/trace.json");
  options.max_steps(1'000'000'000);
  options.epochs(0);
  expect_problem(error_of<IoError>([&] { run_training(options); }),
                 ErrorCode::kFileAccess, {"/no/such/folder"});
}

TEST(RankTrace, ComesBackAsItWas) {
  const RankTrace sent = canned(3, {step(5, 10, 90), work(20, 30)});
  const RankTrace got = rank_trace_from_json(to_json(sent));
  EXPECT_EQ(to_json(got), to_json(sent));
  ASSERT_EQ(got.log.spans.size(), 2u);
  EXPECT_EQ(got.log.spans[0].category, TraceCategory::kStep);
  EXPECT_EQ(got.log.spans[1].begin_ns, 20);
}

TEST(RankTrace, RefusesWhatCantBe) {
  auto json = to_json(canned(0, {work(20, 30)}));
  json["spans"][0]["lane"] = 1;
  EXPECT_THROW(rank_trace_from_json(json), IoError);
  json["spans"][0]["lane"] = 0;
  json["spans"][0]["end_ns"] = 19;
  EXPECT_THROW(rank_trace_from_json(json), IoError);
  json.erase("spans");
  expect_problem(error_of<IoError>([&] { rank_trace_from_json(json); }),
                 ErrorCode::kMalformedData, {"spans"});
}

TEST(TypicalStep, IsTheOneOfMedianDurationWithWhatIsInIt) {
  const auto ranks = typical_step(
      {canned(0, {step(4, 0, 90), step(5, 100, 120), step(6, 130, 180),
                  work(140, 150), work(185, 190)}),
       canned(1, {step(5, 101, 121), step(6, 125, 178), work(130, 170)})});
  ASSERT_EQ(ranks.size(), 2u);
  // Step 6 took 50, between 20 and 90; rank 1 began it, at 125.
  ASSERT_EQ(ranks[0].log.spans.size(), 2u);
  EXPECT_EQ(ranks[0].log.spans[0].begin_ns, 5);
  EXPECT_EQ(ranks[0].log.spans[1].begin_ns, 15);
  ASSERT_EQ(ranks[1].log.spans.size(), 2u);
  EXPECT_EQ(ranks[1].log.spans[1].end_ns, 45);
}

TEST(TypicalStep, IsNoneWhereNoStepWasRecorded) {
  EXPECT_TRUE(typical_step({}).empty());
  EXPECT_TRUE(typical_step({canned(0, {work(0, 1)})}).empty());
}

TEST(ClockOffset, IsNotMovedByABarrierThatWasLeftLate) {
  EXPECT_EQ(clock_offset({1010, 1020, 1930}, {10, 20, 30}), 1000);
  EXPECT_EQ(clock_offset({}, {}), 0);
}

TEST(StepRecorder, ForgetsWhatIsTooOld) {
  StepRecorder recorder(ProcessGroup(), {Device{}}, 2);
  const TraceLane lane(0, "main");
  std::vector<size_t> kept;
  for (int64_t index = 0; index < 4; ++index) {
    recorder.begin_step();
    { const TraceSpan span("step", TraceCategory::kStep, index); }
    kept.push_back(recorder.gather()[0].log.spans.size());
  }
  EXPECT_EQ(kept, (std::vector<size_t>{1, 2, 2, 2}));
  EXPECT_EQ(recorder.gather()[0].log.spans[0].index, 2);
  recorder.restart();
  EXPECT_TRUE(recorder.gather()[0].log.spans.empty());
}

TEST(ChromeTrace, CountsMicrosecondsFromTheFirstSpan) {
  const auto trace =
      to_chrome_trace({canned(0, {work(5'000'001'500, 5'000'002'750)}),
                       canned(1, {work(5'000'000'000, 5'000'000'001)})});
  std::vector<std::pair<double, double>> times;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") times.emplace_back(event["ts"], event["dur"]);
  }
  EXPECT_EQ(times, (std::vector<std::pair<double, double>>{{1.5, 1.25},
                                                           {0.0, 0.001}}));
}

}  // namespace
}  // namespace lockstep::training
