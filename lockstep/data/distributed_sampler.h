#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/data.h>
#include <torch/serialize.h>
#include <torch/types.h>

namespace lockstep::data {

/// Options for distributing the samples of an epoch over the ranks.
struct DistributedSamplerOptions {
  int64_t batch_size = 64;  ///< over all ranks
  int64_t shards = 0;       ///< 0: one for each rank
  bool shuffle = true;
  /// Leaves out the last samples of an epoch if they don't fill a batch. The
  /// samples of a last batch in which some rank has no sample are always left
  /// out.
  bool drop_last = false;
  uint64_t seed = 0;
  /// Epoch and batch to begin with.
  int64_t first_epoch = 0;
  int64_t first_batch = 0;
};

/// Sampler for torch::data::make_data_loader(). Gives rank `rank`'s samples of
/// each batch, as a data::Loader with the same options does. The ranks together
/// read each sample once, and every batch is the same as in a single process.
/// (LibTorch's DistributedRandomSampler repeats samples, and deals them out one
/// by one.)
///
/// Each begin() of the loader starts the next epoch. The loader's own batch
/// size may be any number that is not below this rank's part.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws InvalidArgument for numbers out of range.
  DistributedSampler(int64_t size, int rank, int ranks,
                     const DistributedSamplerOptions& options);

  /// Begins the next epoch; the first time, options.first_epoch. Throws
  /// InvalidArgument for a size that differs from the constructor's.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Throws InvalidArgument if this rank's part of a batch exceeds
  /// `batch_size`.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Saves epoch and batch. Batches that a loader read ahead are counted.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Makes the next reset() continue from the saved position.
  void load(torch::serialize::InputArchive& archive) override;

  int64_t epoch() const { return epoch_; }
  /// Returns the number of batches in an epoch, the same on all ranks.
  int64_t batches() const { return batches_; }

 private:
  int64_t size_;
  int rank_;
  int ranks_;
  DistributedSamplerOptions options_;
  int64_t batches_ = 0;
  int64_t epoch_;
  int64_t batch_;
  bool is_begun_ = false;  // within the epoch
  std::vector<int64_t> order_;
};

}  // namespace lockstep::data
