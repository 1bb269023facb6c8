#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/train/metrics.h"

namespace lockstep::train {

/// CRC-32C (Castagnoli) of `bytes`, as TFRecord has it.
uint32_t crc32c(std::string_view bytes);

/// A new event file of TensorBoard in a folder.
///
/// The format: records (length, its masked CRC-32C, data, its masked CRC-32C;
/// TensorFlow's TFRecord) of protocol buffers (tensorflow.Event).
class EventFile {
 public:
  /// Makes `folder` if it is not there. Throws IoError.
  explicit EventFile(const std::string& folder);

  /// Before all scalars. From `step` on, if it is not 0, TensorBoard drops what
  /// earlier files of the folder have. `wall_time`: seconds since 1970.
  void begin(int64_t step, double wall_time);
  bool is_begun() const { return is_begun_; }
  /// The tags are `prefix` and the metric's name.
  void write_scalars(int64_t step, double wall_time, const std::string& prefix,
                     const Metrics& metrics);

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view data);

  std::string path_;
  bool is_begun_ = false;
};

}  // namespace lockstep::train
