#include "lockstep/train/record/csv_log.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/error_code_of.h"
#include "tests/base/temporary_folder.h"
#include "tests/train/runs.h"

namespace lockstep::training {
namespace {

std::vector<std::string> rows_of(const std::string& path) {
  std::istringstream text(content_of(path));
  std::vector<std::string> rows;
  for (std::string row; std::getline(text, row);) {
    // Without the time.
    const size_t end = row.find(',', row.find(',', row.find(',') + 1) + 1);
    const size_t next = row.find(',', end + 1);
    const size_t after = row.find(',', next + 1);
    rows.push_back(rows.empty() || row[next + 1] == ','
                       ? row
                       : row.substr(0, next) + row.substr(after));
  }
  return rows;
}

void make_step(CsvLog& log, int64_t step, const Metrics& metrics) {
  log.before_step({.step = step});
  log.after_step({.step = step + 1, .epoch = 2, .lr = 0.5}, metrics);
}

TEST(CsvLog, HasARowForEachStepAndEvaluation) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.csv");
  CsvLog log(path);
  make_step(log, 0, {{"accuracy", 0.25}, {"loss", 2.5}});
  log.after_evaluation({.step = 1, .epoch = 2},
                       {.metrics = {{"loss", 2}, {"odd,one", 7}}});
  make_step(log, 1, {{"accuracy", 0.5}, {"loss", 1.5}});
  EXPECT_EQ(rows_of(path),
            (std::vector<std::string>{
                "step,epoch,data,lr,step_ms,loss,accuracy,\"odd,one\"",
                "1,2,train,0.5,2.5,0.25,", "1,2,test,,,2,,7",
                "2,2,train,0.5,1.5,0.5,"}));
}

TEST(CsvLog, HasEachStepOnceWhenARunGoesOn) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.csv");
  {
    CsvLog log(path);
    for (int64_t step = 0; step < 4; ++step) {
      make_step(log, step, {{"loss", 0.5}});
    }
  }
  CsvLog again(path);
  make_step(again, 2, {{"loss", 0.75}, {"accuracy", 1}});
  EXPECT_EQ(rows_of(path), (std::vector<std::string>{
                               "step,epoch,data,lr,step_ms,loss,accuracy",
                               "1,2,train,0.5,0.5,", "2,2,train,0.5,0.5,",
                               "3,2,train,0.5,0.75,1"}));
  CsvLog anew(path);
  make_step(anew, 0, {{"loss", 0.25}});
  EXPECT_EQ(rows_of(path).size(), 2u);
}

TEST(CsvLog, KeepsNamesInQuotes) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.csv");
  const Metrics metrics{{"loss", 0.5}, {"odd,\"one\"", 7}};
  {
    CsvLog log(path);
    make_step(log, 0, metrics);
  }
  CsvLog again(path);
  make_step(again, 1, metrics);
  EXPECT_EQ(rows_of(path),
            (std::vector<std::string>{
                "step,epoch,data,lr,step_ms,loss,\"odd,\"\"one\"\"\"",
                "1,2,train,0.5,0.5,7", "2,2,train,0.5,0.5,7"}));
}

// As in a run that was resumed when nothing was left to do.
TEST(CsvLog, HasARepeatedEvaluationOnce) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.csv");
  const TestReport test{.metrics = {{"loss", 2}}};
  {
    CsvLog log(path);
    make_step(log, 0, {{"loss", 0.5}});
    log.after_evaluation({.step = 1, .epoch = 2}, test);
  }
  CsvLog(path).after_evaluation({.step = 1, .epoch = 2}, test);
  EXPECT_EQ(rows_of(path).size(), 3u);
}

TEST(CsvLog, RefusesAnotherFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path("log.csv");
  std::ofstream(path) << "a,b\n1,2\n";
  EXPECT_EQ(error_code_of([&] { const CsvLog log(path); }),
            ErrorCode::kFileAccess);
  EXPECT_EQ(content_of(path), "a,b\n1,2\n");
  EXPECT_EQ(error_code_of([&] { CsvLog(folder.path("no/log.csv")); }),
            ErrorCode::kFileAccess);
}

TEST(CsvLog, OfARunIsThatOfOneRank) {
  const TemporaryFolder folder;
  ImageTraining options = sharded_run();
  options.log().csv(folder.path("log.csv"));
  const RunReport report = distributed(options, 2, "tcp");
  const auto rows = rows_of(options.log().csv());
  // A header, and the evaluation at the end.
  EXPECT_EQ(rows.size(), static_cast<size_t>(report.steps) + 2);
}

}  // namespace
}  // namespace lockstep::training
