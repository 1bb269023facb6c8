#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include <torch/arg.h>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/dataset_source.h"
#include "lockstep/data/image_source.h"

namespace lockstep::data {

/// The part of each batch that a loader makes: shards [first, last) of
/// `shards`, cut as by torch.chunk. The loaders of the ranks of a job have the
/// same options except for this one. Together they make one batch, with each
/// sample once.
struct BatchPart {
  int64_t shards = 1;
  int64_t first = 0;
  int64_t last = 1;

  /// Returns the part of `rank` in a group of `size` ranks that have a shard
  /// each.
  static BatchPart for_rank(int64_t size, int64_t rank) {
    return {.shards = size, .first = rank, .last = rank + 1};
  }
};

/// Options for making batches.
struct LoaderOptions {
  /// Number of samples in a batch, of all parts together.
  TORCH_ARG(int64_t, batch_size) = 64;
  TORCH_ARG(BatchPart, part);
  TORCH_ARG(bool, shuffle) = false;
  /// Leaves out the last samples of an epoch if they don't fill a batch.
  TORCH_ARG(bool, drop_last) = false;
  /// Number of threads. 0 loads a batch when the loop asks for it.
  TORCH_ARG(int, workers) = 1;
  /// Number of batches made ahead.
  TORCH_ARG(int, prefetch) = 4;
  TORCH_ARG(uint64_t, seed) = 0;
  /// Replaces the shuffled order. Returns the samples of an epoch, as numbers
  /// below `size`. It must return the same on all ranks. Every epoch is as long
  /// as the order of epoch 0.
  TORCH_ARG(std::function<std::vector<int64_t>(int64_t size, int64_t epoch)>,
            order);
};

/// Makes batches ahead of time in worker threads.
///
///     lockstep::data::Loader loader(images, LoaderOptions().shuffle(true));
///     for (int64_t epoch = 0; epoch < epochs; ++epoch) {
///       loader.set_epoch(epoch);
///       for (auto& batch : loader) {
///         model->train_step(batch.data, batch.target, loss, optimizer);
///       }
///     }
///
/// The order of the samples depends only on (seed, epoch), not on the number of
/// workers or on timing. Not thread-safe.
class Loader {
 public:
  class Iterator;

  /// Throws InvalidArgument for sizes below 1 or if there are no samples.
  explicit Loader(std::shared_ptr<const BatchSource> source,
                  const LoaderOptions& options = {});
  /// Loads images without augmentation.
  explicit Loader(std::shared_ptr<const Dataset> dataset,
                  const LoaderOptions& options = {});
  /// Loads samples of your own class (see DatasetSource), or of a stream (see
  /// in_order()), and stacks them. If a sample has a tuple of inputs, they are
  /// Batch::inputs.
  template <class D>
  requires(!std::derived_from<D, BatchSource> &&
           !std::derived_from<
               D, Dataset>) explicit Loader(std::shared_ptr<D> dataset,
                                            const LoaderOptions& options = {})
      : Loader(std::shared_ptr<const BatchSource>(
                   std::make_shared<DatasetSource<D>>(std::move(dataset))),
               options) {}
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Sets the epoch that begin() starts, and the batch that it starts with (to
  /// resume an epoch). Until the next call, begin() starts the same epoch
  /// again, as with PyTorch's DistributedSampler; before the first call, epoch
  /// 0. Throws InvalidArgument for negative numbers.
  void set_epoch(int64_t epoch, int64_t first_batch = 0);
  /// Starts the epoch, and drops batches that were made ahead. Earlier
  /// iterators are then invalid.
  Iterator begin();
  Iterator end();
  /// Returns the number of batches in an epoch.
  int64_t batches() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Input iterator over the batches of an epoch. Waits for a batch when it is
/// first used: when it is compared with end(), or dereferenced. Both rethrow
/// what a worker threw, and the batch is then left out. Copies share their
/// position.
class Loader::Iterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  using pointer = Batch*;
  using reference = Batch&;

  /// Makes an iterator that is equal to end().
  Iterator() = default;

  /// Throws InvalidArgument at the end of the epoch, or if begin() was called
  /// again.
  Batch& operator*() const;
  Batch* operator->() const { return &**this; }
  Iterator& operator++();
  void operator++(int) { ++*this; }
  /// Two iterators are equal if both are at the end, or if one is a copy of the
  /// other.
  bool operator==(const Iterator& other) const;

 private:
  friend class Loader;
  struct Position;
  explicit Iterator(std::shared_ptr<Position> position);
  bool is_at_end() const;

  std::shared_ptr<Position> position_;
};

}  // namespace lockstep::data
