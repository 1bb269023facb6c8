#include "lockstep/data/distributed_sampler.h"

#include <algorithm>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"
#include "lockstep/data/random_stream.h"

namespace lockstep::data {
namespace {

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         int64_t got) {
  throw InvalidArgument("data", {.code = ErrorCode::kMisuse,
                                 .what = what,
                                 .expected = expected,
                                 .got = fmt::format("{}", got)});
}

int64_t read(torch::serialize::InputArchive& archive, const char* name) {
  torch::Tensor value;
  archive.read(name, value);
  const bool is_number =
      value.dim() == 0 && value.scalar_type() == torch::kInt64;
  const int64_t number = is_number ? value.item<int64_t>() : -1;
  if (number < 0) {
    refuse(fmt::format("the sampler's saved {} can't be", name), "0 or more",
           number);
  }
  return number;
}

}  // namespace

DistributedSampler::DistributedSampler(int64_t size, int rank, int ranks,
                                       const DistributedSamplerOptions& options)
    : size_(size),
      rank_(rank),
      ranks_(ranks),
      options_(options),
      epoch_(options.first_epoch),
      batch_(options.first_batch) {
  if (size < 1) refuse("there is nothing to sample", "1 or more", size);
  if (ranks < 1) refuse("there is no rank", "1 or more", ranks);
  if (rank < 0 || rank >= ranks) {
    refuse("there is no such rank", fmt::format("0 to {}", ranks - 1), rank);
  }
  if (options.batch_size < 1) {
    refuse("bad batch size", "1 or more", options.batch_size);
  }
  if (options.shards == 0) options_.shards = ranks;
  if (options_.shards < ranks) {
    refuse("some ranks would have no shard", fmt::format("{} or more", ranks),
           options_.shards);
  }
  if (epoch_ < 0) refuse("bad first epoch", "0 or more", epoch_);
  batches_ = size / options.batch_size;
  const int64_t rest = size % options.batch_size;
  // The last rank has the last samples of a batch.
  const ShardRange last = shards_of_worker(ranks - 1, ranks, options_.shards);
  const auto fills_all = [&](int64_t samples) {
    return samples_of(last, samples, options_.shards).count() > 0;
  };
  if (batches_ > 0 && !fills_all(options.batch_size)) {
    refuse("a batch gives some rank no sample",
           "more than that for " + counted(options_.shards, "shard"),
           options.batch_size);
  }
  if (!options.drop_last && rest > 0 && fills_all(rest)) ++batches_;
  if (batches_ == 0) {
    refuse("an epoch has no batch", "a batch size of at most the samples",
           options.batch_size);
  }
  if (batch_ < 0 || batch_ >= batches_) {
    refuse("there is no such batch", fmt::format("0 to {}", batches_ - 1),
           batch_);
  }
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  if (new_size && static_cast<int64_t>(*new_size) != size_) {
    refuse("the dataset has another size than its sampler",
           fmt::format("{}", size_), static_cast<int64_t>(*new_size));
  }
  if (is_begun_) {
    ++epoch_;
    batch_ = 0;
  }
  is_begun_ = true;
  if (options_.shuffle) {
    order_ = shuffled_order(size_, options_.seed, epoch_);
  } else {
    order_.resize(static_cast<size_t>(size_));
    std::iota(order_.begin(), order_.end(), int64_t{0});
  }
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  if (!is_begun_) reset(std::nullopt);
  if (batch_ >= batches_) return std::nullopt;
  const int64_t begin = batch_ * options_.batch_size;
  const int64_t total = std::min(options_.batch_size, size_ - begin);
  const SampleRange own = samples_of(
      shards_of_worker(rank_, ranks_, options_.shards), total, options_.shards);
  if (static_cast<int64_t>(batch_size) < own.count()) {
    refuse("the loader's batches are smaller than this rank's part",
           fmt::format("{} or more", own.count()),
           static_cast<int64_t>(batch_size));
  }
  ++batch_;
  const auto first = order_.begin() + begin;
  return std::vector<size_t>(first + own.first, first + own.last);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::tensor(epoch_), /*is_buffer=*/true);
  archive.write("batch", torch::tensor(batch_), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const int64_t epoch = read(archive, "epoch");
  const int64_t batch = read(archive, "batch");
  if (batch > batches_) {
    refuse("the sampler's saved batch is not one of this epoch",
           fmt::format("at most {}", batches_), batch);
  }
  // The end of an epoch is the beginning of the next one.
  epoch_ = batch == batches_ ? epoch + 1 : epoch;
  batch_ = batch == batches_ ? 0 : batch;
  is_begun_ = false;
}

}  // namespace lockstep::data
