#include "lockstep/data/distributed_sampler.h"

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
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

// Shared by the copies of a sampler.
struct DistributedSampler::State {
  int64_t epoch = 0;        // that reset() starts
  int64_t first_batch = 0;  // of that epoch
  bool is_begun = false;
  int64_t batch = 0;             // number of the next one
  bool is_at_end = false;        // of the epoch
  std::vector<int64_t> order{};  // of the samples in this epoch
};

DistributedSampler::DistributedSampler(int64_t size, int num_replicas, int rank,
                                       const DistributedSamplerOptions& options)
    : size_(size),
      num_replicas_(num_replicas),
      rank_(rank),
      options_(options),
      state_(std::make_shared<State>()) {
  if (size < 1) refuse("there is nothing to sample", "1 or more", size);
  if (num_replicas < 1) refuse("there is no rank", "1 or more", num_replicas);
  if (rank < 0 || rank >= num_replicas) {
    refuse("there is no such rank", fmt::format("0 to {}", num_replicas - 1),
           rank);
  }
  if (options.shards() == 0) options_.shards(num_replicas);
  if (options_.shards() < num_replicas) {
    refuse("some ranks would have no shard",
           fmt::format("{} or more", num_replicas), options_.shards());
  }
}

int64_t DistributedSampler::batches(int64_t batch_size) const {
  if (batch_size < 1) refuse("bad batch size", "1 or more", batch_size);
  // The last rank has the last samples of a batch.
  const ShardRange last =
      shards_of_worker(num_replicas_ - 1, num_replicas_, options_.shards());
  const auto fills_all = [&](int64_t samples) {
    return samples_of(last, samples, options_.shards()).count() > 0;
  };
  const int64_t all_ranks = batch_size * num_replicas_;
  const int64_t whole = size_ / all_ranks;
  const int64_t rest = size_ % all_ranks;
  if (whole > 0 && !fills_all(all_ranks)) {
    refuse("a batch gives some rank no sample",
           "more than that for " + counted(options_.shards(), "shard"),
           all_ranks);
  }
  const bool keeps_rest = !options_.drop_last() && rest > 0 && fills_all(rest);
  const int64_t batches = whole + (keeps_rest ? 1 : 0);
  if (batches == 0) {
    refuse("an epoch has no batch",
           "a batch of all ranks that has at most the samples", all_ranks);
  }
  return batches;
}

int64_t DistributedSampler::epoch() const { return state_->epoch; }

void DistributedSampler::set_epoch(int64_t epoch, int64_t first_batch) {
  if (epoch < 0) refuse("bad epoch", "0 or more", epoch);
  if (first_batch < 0) refuse("bad first batch", "0 or more", first_batch);
  state_->epoch = epoch;
  state_->first_batch = first_batch;
  state_->is_begun = false;
}

void DistributedSampler::reset(std::optional<size_t> new_size) {
  if (new_size && static_cast<int64_t>(*new_size) != size_) {
    refuse("the dataset has another size than its sampler",
           fmt::format("{}", size_), static_cast<int64_t>(*new_size));
  }
  State& state = *state_;
  state.is_begun = true;
  state.is_at_end = false;
  state.batch = state.first_batch;
  state.order =
      epoch_order(size_, options_.shuffle(), options_.seed(), state.epoch);
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  State& state = *state_;
  if (!state.is_begun) reset(std::nullopt);
  const int64_t count = batches(static_cast<int64_t>(batch_size));
  if (state.batch >= count) {
    state.is_at_end = true;
    return std::nullopt;
  }
  const int64_t all_ranks = static_cast<int64_t>(batch_size) * num_replicas_;
  const int64_t begin = state.batch * all_ranks;
  const int64_t total = std::min(all_ranks, size_ - begin);
  const SampleRange own =
      samples_of(shards_of_worker(rank_, num_replicas_, options_.shards()),
                 total, options_.shards());
  state.is_at_end = ++state.batch == count;
  const auto first = state.order.begin() + begin;
  return std::vector<size_t>(first + own.first, first + own.last);
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const State& state = *state_;
  int64_t epoch = state.epoch;
  int64_t batch = state.is_begun ? state.batch : state.first_batch;
  if (state.is_begun && state.is_at_end) {
    ++epoch;
    batch = 0;
  }
  archive.write("epoch", torch::tensor(epoch), /*is_buffer=*/true);
  archive.write("batch", torch::tensor(batch), /*is_buffer=*/true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const int64_t epoch = read(archive, "epoch");
  set_epoch(epoch, read(archive, "batch"));
}

}  // namespace lockstep::data
