#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/info.h"
#include "lockstep/checkpoint/staging.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

/// The content of a checkpoint. The writer fills in info.parameter_sha256.
struct CheckpointContent {
  CheckpointInfo info;
  NamedTensors model;     ///< parameters, then buffers
  size_t parameters = 0;  ///< number of parameters at the start of `model`
  OptimizerState optimizer;
  OptimizerState random{};  ///< states of generators
};

/// The content of a file of a checkpoint.
struct CheckpointPart {
  std::string file;
  NamedTensors tensors;
  size_t parameters = 0;  ///< number of leading tensors that are a model's
};

/// Writes checkpoints (see save_checkpoint) while the steps continue. save()
/// copies the data that this rank has to write and returns. Another thread
/// writes them to the disk. All ranks have the same content. Those that see
/// rank 0's folder write it together, each a part.
///
/// If a checkpoint can't be written, the writer warns, and the run continues,
/// since the earlier checkpoints still exist. finish() throws if the last one
/// could not be written.
class CheckpointWriter {
 public:
  /// Collective. Keeps the newest `keep` checkpoints, at least 2.
  CheckpointWriter(std::string dir, int keep, const ProcessGroup& world = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits if the previous checkpoint is still being written. Collective.
  void save(const CheckpointContent& content);
  /// Waits until the last save() is on the disk or has failed.
  void wait();
  /// Waits in the same way. Throws CheckpointError if writing failed.
  void finish();

  /// Returns the folder of the last complete checkpoint, or "" before the
  /// first.
  const std::string& last() const { return last_; }
  /// Returns the work and waiting times of this rank.
  const CheckpointCosts& costs() const { return costs_; }

 private:
  struct Written {
    std::string path;
    double seconds = 0;
  };

  bool takes_part() const { return world_.has_value(); }
  std::vector<CheckpointPart> own_parts(const CheckpointContent& content) const;
  std::vector<CheckpointPart> stage(std::vector<CheckpointPart> parts);
  Written write(const CheckpointInfo& info,
                const std::vector<CheckpointPart>& parts);
  Written try_to_write(const CheckpointInfo& info,
                       const std::vector<CheckpointPart>& parts);
  void prune(int64_t last) const;

  const std::string dir_;
  const int keep_;
  std::optional<ProcessGroup> world_;  // the ranks that write
  Staging staging_;
  std::future<Written> pending_;
  std::string last_;
  std::string failure_;  // failure of the last checkpoint
  CheckpointCosts costs_;
};

}  // namespace lockstep
