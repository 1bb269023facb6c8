#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/costs.h"
#include "lockstep/checkpoint/part.h"
#include "lockstep/checkpoint/staging.h"
#include "lockstep/comm/world.h"

namespace lockstep {

/// Everything that goes into a checkpoint. info.parameter_sha256 is filled in
/// by who writes it.
struct CheckpointContent {
  CheckpointInfo info;
  NamedTensors model;     ///< parameters, then buffers
  size_t parameters = 0;  ///< the first so many of `model`
  OptimizerState optimizer;
  OptimizerState random{};  ///< generators' states
};

/// Writes checkpoints (see save_checkpoint) beside the steps: save() copies
/// what this rank has to write and returns; another thread brings it to the
/// disk. Of several ranks, which all have the same content, those
/// that see rank 0's folder write it together, each a part.
///
/// A checkpoint that can't be written is a warning, and the run goes on: those
/// that were written before are still there. finish() throws if the last one
/// could not be.
class CheckpointWriter {
 public:
  /// Collective. `keep` newest ones are kept, 2 at least.
  CheckpointWriter(std::string dir, int keep, const World& world = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the one before, if that is still being written. Collective.
  void save(const CheckpointContent& content);
  /// Waits until what was saved is on the disk, or can't be.
  void wait();
  /// The same; throws CheckpointError if it can't be.
  void finish();

  /// The folder of the last one that is whole; "" for none.
  const std::string& last() const { return last_; }
  /// What this rank did and waited for.
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
  std::optional<World> world_;  // of the ranks that write
  Staging staging_;
  std::future<Written> pending_;
  std::string last_;
  std::string failure_;  // of the last one
  CheckpointCosts costs_;
};

}  // namespace lockstep
