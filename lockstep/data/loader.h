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
/// `shards`, cut as torch.chunk cuts. Loaders of the ranks of a job that have
/// the same options but for this make one batch together, each sample once.
struct BatchPart {
  int64_t shards = 1;
  int64_t first = 0;
  int64_t last = 1;
};

/// How a Loader makes batches.
struct LoaderOptions {
  int64_t batch_size = 64;  ///< of all parts together
  BatchPart part;
  bool shuffle = false;
  /// Leaves out the samples at an epoch's end that fill no batch.
  bool drop_last = false;
  int workers = 1;   ///< threads; 0 loads in next()
  int prefetch = 4;  ///< batches made ahead
  uint64_t seed = 0;
  /// Replaces the shuffled order: the samples of an epoch, each a number below
  /// `size`, as many as there are to be. The same on all ranks. Makes an epoch
  /// as long as the order of epoch 0.
  std::function<std::vector<int64_t>(int64_t size, int64_t epoch)> order = {};
};

/// Makes batches ahead of time in worker threads.
///
/// The order of the samples depends on (seed, epoch) alone: neither on the
/// number of workers nor on timing.
class Loader {
 public:
  /// Throws InvalidArgument for sizes below 1 or without samples.
  Loader(std::shared_ptr<const BatchSource> source,
         const LoaderOptions& options);
  /// Of images, as they are.
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
