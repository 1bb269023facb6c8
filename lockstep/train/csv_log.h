#pragma once

#include <string>
#include <vector>

#include "lockstep/base/stopwatch.h"
#include "lockstep/train/callback.h"

namespace lockstep::train {

/// Writes what a run tells of its steps and evaluations to a CSV file (RFC
/// 4180), a row each:
///
///     step,epoch,data,lr,step_ms,loss,accuracy
///     1,0,train,0.01,12.1,2.3026,0.101
///     100,0,test,,,1.204,0.55
///
/// `step` counts the steps done, `epoch` from 0. A metric that comes later gets
/// a column behind the others. A run that goes on drops the rows of the steps
/// that it repeats. For one rank; that of others is not made.
class CsvLog : public Callback {
 public:
  /// Throws IoError if `path` can't be written, or is another file.
  explicit CsvLog(std::string path);

  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_evaluation(const RunState& at, const TestReport& test) override;

 private:
  using Cells = std::vector<std::string>;

  /// Takes over the rows up to `step` of a file that is there, but for an
  /// evaluation after `step` if that is repeated.
  void open(int64_t step, bool repeats_evaluation);
  void add(Cells cells, const Metrics& metrics);
  void write_all(const std::vector<std::string>& rows);
  std::string header() const;

  std::string path_;
  std::vector<std::string> metrics_;  // the names of the last columns
  bool is_open_ = false;
  Stopwatch watch_;
};

}  // namespace lockstep::train
