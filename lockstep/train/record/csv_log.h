#pragma once

#include <string>
#include <vector>

#include "lockstep/train/callback.h"

namespace lockstep::training {

/// Writes the steps and evaluations of a run to a CSV file (RFC 4180), one row
/// each:
///
///     step,epoch,data,lr,step_ms,loss,accuracy
///     1,0,train,0.01,12.1,2.3026,0.101
///     100,0,test,,,1.204,0.55
///
/// `step` counts the steps done, `epoch` counts from 0. A metric that first
/// appears later gets a column after the others. A resumed run drops the rows
/// of the steps that it repeats. Only one rank makes a CsvLog.
class CsvLog : public Callback {
 public:
  /// Throws IoError if `path` can't be written, or is a file of another kind.
  explicit CsvLog(std::string path);

  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_evaluation(const RunState& at, const TestReport& test) override;

 private:
  using Cells = std::vector<std::string>;

  /// Keeps the rows of an existing file up to `step`. Drops the evaluation at
  /// `step` if it is going to be repeated.
  void open(int64_t step, bool repeats_evaluation);
  void add(Cells cells, const Metrics& metrics);
  void write_all(const std::vector<std::string>& rows);
  std::string header() const;

  std::string path_;
  std::vector<std::string> metrics_;  // the names of the last columns
  bool is_open_ = false;
};

}  // namespace lockstep::training
