#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/arg.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize.h>

namespace lockstep::data {

/// Options for distributing the samples of an epoch over the ranks.
struct DistributedSamplerOptions {
  TORCH_ARG(bool, shuffle) = true;
  TORCH_ARG(uint64_t, seed) = 0;
  /// Leaves out the last samples of an epoch if they don't fill a batch. The
  /// samples of a last batch in which some rank has no sample are always left
  /// out.
  TORCH_ARG(bool, drop_last) = false;
  /// Number of shards of a batch, at least one for each rank. 0: one for each
  /// rank.
  TORCH_ARG(int64_t, shards) = 0;
};

/// Sampler for torch::data::make_data_loader(), with the arguments and the
/// set_epoch() of PyTorch's DistributedSampler:
///
///     lockstep::data::DistributedSampler sampler(size, world.size(),
///                                                world.rank());
///     auto loader = torch::data::make_data_loader(dataset, sampler, 32);
///     for (int64_t epoch = 0; epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) { ... }
///     }
///
/// The batch size of the loader is that of a rank. The ranks together read
/// batches of num_replicas times as many samples, each sample once, and these
/// are the batches that a data::Loader with the same seed makes in one process.
/// (PyTorch and LibTorch deal out the samples one by one and repeat some, or
/// leave some out, so that all ranks have as many.) A rank's part has another
/// size than the loader's batch if the last batch is short, or if the shards
/// are of different sizes: a batch of 20 has 5 samples in each of 4 shards, and
/// 7, 7 and 6 in 3. Don't set drop_last of such a loader: it would end the
/// epoch at a smaller part, on this rank only.
///
/// Copies share their epoch and their position. A loader has a copy, which
/// set_epoch() therefore reaches. Use one loader at a time.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws InvalidArgument for numbers out of range.
  DistributedSampler(int64_t size, int num_replicas, int rank,
                     const DistributedSamplerOptions& options = {});

  /// Sets the epoch that reset() starts, and the batch that it starts with (to
  /// resume an epoch). begin() of the loader calls reset(). Until the next
  /// call, the same epoch starts again; before the first call, epoch 0. Throws
  /// InvalidArgument for negative numbers.
  void set_epoch(int64_t epoch, int64_t first_batch = 0);
  /// Starts the epoch. Throws InvalidArgument for a size that differs from the
  /// constructor's.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// Returns this rank's part of the next num_replicas * batch_size samples, or
  /// nothing at the end of the epoch. Throws InvalidArgument if an epoch has no
  /// batch of that size, or if such a batch gives some rank no sample.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  /// Saves epoch and batch. Batches that a loader read ahead are counted. The
  /// end of an epoch is saved as the beginning of the next one.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Calls set_epoch() with the saved epoch and batch. Throws InvalidArgument
  /// if they are negative.
  void load(torch::serialize::InputArchive& archive) override;

  /// Returns the epoch that the next reset() starts.
  int64_t epoch() const;
  /// Returns the number of batches in an epoch for a loader with that batch
  /// size. It is the same on all ranks. Throws as next() does.
  int64_t batches(int64_t batch_size) const;

 private:
  struct State;

  int64_t size_;
  int num_replicas_;
  int rank_;
  DistributedSamplerOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::data
