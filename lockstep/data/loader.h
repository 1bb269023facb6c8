#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/batch.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// The part of each batch that a loader makes: shards [first, last) of
/// `shards`, cut as by torch.chunk. The loaders of the ranks of a job have the
/// same options except for this one. Together they make one batch, with each
/// sample once.
struct BatchPart {
  int64_t shards = 1;
  int64_t first = 0;
  int64_t last = 1;
};

/// Options for making batches.
struct LoaderOptions {
  int64_t batch_size = 64;  ///< all parts together
  BatchPart part;
  bool shuffle = false;
  /// Leaves out the last samples of an epoch if they don't fill a batch.
  bool drop_last = false;
  int workers = 1;   ///< threads; 0 loads in next()
  int prefetch = 4;  ///< number of batches made ahead
  uint64_t seed = 0;
  /// Replaces the shuffled order. Returns the samples of an epoch, as numbers
  /// below `size`. It must return the same on all ranks. Every epoch is as long
  /// as the order of epoch 0.
  std::function<std::vector<int64_t>(int64_t size, int64_t epoch)> order = {};
};

/// Makes batches ahead of time in worker threads.
///
/// The order of the samples depends only on (seed, epoch), not on the number of
/// workers or on timing.
class Loader {
 public:
  /// Throws InvalidArgument for sizes below 1 or if there are no samples.
  Loader(std::shared_ptr<const BatchSource> source,
         const LoaderOptions& options);
  /// Loads images without augmentation.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Starts epoch `epoch` at batch `first_batch`. Drops batches that were made
  /// ahead.
  void begin(int64_t epoch, int64_t first_batch = 0);
  /// Returns the next batch, or nothing at the end of the epoch. Rethrows what
  /// a worker threw.
  std::optional<Batch> next();
  /// Returns the number of batches in an epoch.
  int64_t batches() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
