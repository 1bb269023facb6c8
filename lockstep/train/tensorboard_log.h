#pragma once

#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/stopwatch.h"
#include "lockstep/train/callback.h"

namespace lockstep::train {

/// CRC-32C (Castagnoli) of `bytes`, as TFRecord has it.
uint32_t crc32c(std::string_view bytes);

/// Writes what a run tells of its steps and evaluations for TensorBoard: an
/// event file of scalars "train/loss", "test/accuracy", "lr", "step_ms", ...,
/// by steps done.
///
/// The format: records (length, its masked CRC-32C, data, its masked CRC-32C;
/// TensorFlow's TFRecord) of protocol buffers (tensorflow.Event). Each run
/// begins a file of its own in the folder. That of a run that goes on begins
/// with a session log, by which TensorBoard drops what files before it have of
/// the steps that are repeated. For one rank; that of others is not made.
class TensorBoardLog : public Callback {
 public:
  /// Makes `folder` if it is not there. Throws IoError.
  explicit TensorBoardLog(const std::string& folder);

  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_evaluation(const RunState& at, const TestReport& test) override;

 private:
  void open(int64_t step);
  void write_record(std::string_view data);
  void write_scalars(int64_t step, const std::string& prefix,
                     const Metrics& metrics);

  std::string path_;
  std::ofstream file_;
  bool is_open_ = false;
  Stopwatch watch_;
};

}  // namespace lockstep::train
