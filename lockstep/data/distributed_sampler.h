#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <torch/data.h>
#include <torch/serialize.h>
#include <torch/types.h>

namespace lockstep::data {

/// How the samples of an epoch are dealt to the ranks.
struct DistributedSamplerOptions {
  int64_t batch_size = 64;  ///< over all ranks
  int64_t shards = 0;       ///< 0: one for each rank
  bool shuffle = true;
  /// Leaves out the samples at an epoch's end that fill no batch. Those of a
  /// last batch that gives some rank no sample are left out in any case.
  bool drop_last = false;
  uint64_t seed = 0;
  /// Where it begins: with this batch of this epoch.
  int64_t first_epoch = 0;
  int64_t first_batch = 0;
};

/// For torch::data::make_data_loader(): the samples of each batch that are
/// rank `rank`'s, as a data::Loader with the same options gives them. The ranks
/// read each sample once, and no batch is other than that of a single process
/// (where LibTorch's DistributedRandomSampler repeats samples, and deals them
/// out one by one).
///
/// Each begin() of the loader is the next epoch. The loader's own batch size
/// may be anything that is not below this rank's part.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws InvalidArgument for numbers that can't be.
  DistributedSampler(int64_t size, int rank, int ranks,
                     const DistributedSamplerOptions& options);

  /// Begins the next epoch; the first time, options.first_epoch. Throws
  /// InvalidArgument for a size other than it was made with.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Throws InvalidArgument if `batch_size` is less than a batch has here.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Epoch and batch; what a loader read ahead counts.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// The next reset() goes on there.
  void load(torch::serialize::InputArchive& archive) override;

  int64_t epoch() const { return epoch_; }
  /// Batches in an epoch, the same on all ranks.
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
