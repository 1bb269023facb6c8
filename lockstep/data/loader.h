#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <torch/torch.h>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

struct Batch {
  torch::Tensor inputs;   ///< (N, C, H, W) float32, normalised
  torch::Tensor targets;  ///< (N) int64
  int64_t total = 0;      ///< samples of the batch, of which N are this part
};

/// The part of each batch that a loader makes: shards [first, last) of
/// `shards`, cut as torch.chunk cuts. Loaders of the ranks of a job that have
/// the same options but for this make one batch together, each sample once.
struct BatchPart {
  int64_t shards = 1;
  int64_t first = 0;
  int64_t last = 1;
};

struct LoaderOptions {
  int64_t batch_size = 64;  ///< of all parts together
  BatchPart part;
  bool shuffle = false;
  bool augment = false;  ///< random crop (padding 4) and horizontal flip
  bool drop_last = false;
  bool channels_last = false;
  int workers = 1;   ///< threads; 0 loads in next()
  int prefetch = 4;  ///< batches made ahead
  uint64_t seed = 0;
};

/// Makes batches ahead of time in worker threads.
///
/// What sample `index` looks like depends on (seed, epoch, index) alone, and
/// the order on (seed, epoch): neither on the number of workers nor on timing.
class Loader {
 public:
  /// Throws InvalidArgument for sizes below 1 or an empty dataset.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Starts epoch `epoch` at batch `first_batch`; drops what was made ahead.
  void begin(int64_t epoch, int64_t first_batch = 0);
  /// The next batch, or nothing at the end of the epoch. Rethrows what a
  /// worker threw.
  std::optional<Batch> next();
  /// Batches in an epoch.
  int64_t batches() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
