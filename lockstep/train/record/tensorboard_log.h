#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/train/callback.h"
#include "lockstep/train/metrics.h"

namespace lockstep::training {

/// Returns the CRC-32C (Castagnoli) of `bytes`, as in TFRecord.
uint32_t crc32c(std::string_view bytes);

/// Writes a new event file of TensorBoard in a folder.
///
/// The file consists of records of TensorFlow's TFRecord (length, its masked
/// CRC-32C, data, its masked CRC-32C) that hold protocol buffers
/// (tensorflow.Event).
class EventFile {
 public:
  /// Makes `folder` if it does not exist. Throws IoError.
  explicit EventFile(const std::string& folder);

  /// Must be called before any scalars are written. If `step` is not 0,
  /// TensorBoard drops the steps after `step` in earlier files of the folder.
  /// `wall_time`: seconds since 1970.
  void begin(int64_t step, double wall_time);
  bool is_begun() const { return is_begun_; }
  /// Writes the metrics with the tags `prefix` + name.
  void write_scalars(int64_t step, double wall_time, const std::string& prefix,
                     const Metrics& metrics);

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view data);

  std::string path_;
  bool is_begun_ = false;
};

/// Writes the steps and evaluations of a run for TensorBoard: an event file of
/// scalars "train/loss", "test/accuracy", "lr", "step_ms", ..., by steps done.
///
/// Each run begins a new file in the folder. The file of a resumed run begins
/// with a session log, which makes TensorBoard drop the repeated steps of
/// earlier files. Only one rank makes a TensorBoardLog.
class TensorBoardLog : public Callback {
 public:
  /// Makes `folder` if it does not exist. Throws IoError.
  explicit TensorBoardLog(const std::string& folder) : file_(folder) {}

  void before_step(const RunState& at) override;
  void after_step(const RunState& at, const Metrics& metrics) override;
  void after_evaluation(const RunState& at, const TestReport& test) override;

 private:
  void open(int64_t step);
  void write_scalars(int64_t step, const std::string& prefix,
                     const Metrics& metrics);

  EventFile file_;
};

}  // namespace lockstep::training
