#include "lockstep/parallel/shared_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

namespace {

constexpr size_t kLine = 64;

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

size_t bytes_of(const Tensor& tensor) { return round_up(tensor.nbytes()); }

/// Partial sums that a worker has of neighbouring shards at most: left and
/// right of the highest node of the tree, two for each level.
size_t most_partials_of(int64_t shards) {
  return 2 * static_cast<size_t>(std::bit_width(static_cast<uint64_t>(shards)));
}

}  // namespace

/// At the start of a rank's memory; arrays follow it.
struct SharedExchange::Table {
  int64_t samples;
  int64_t partials;
  // Of each partial sum: its shards.
  struct Range {
    int64_t first, last;
  };
  std::array<Range, 128> ranges;
};

SharedExchange::SharedExchange(const World& world, const ModuleHandle& module,
                               std::vector<Tensor> parameters, int64_t shards)
    : world_(world),
      buffers_(module.buffers),
      parameters_(std::move(parameters)),
      shards_(shards),
      most_partials_(std::min<size_t>(
          static_cast<size_t>((shards + world.size() - 1) / world.size()),
          most_partials_of(shards))),
      most_values_(optim::cut_into_blocks(parameters_).size()) {
  torch::NoGradGuard no_grad;
  size_t parameter_bytes = 0;
  size_t buffer_bytes = 0;
  for (const Tensor& parameter : parameters_) {
    parameter_bytes += bytes_of(parameter);
  }
  for (const auto& [name, buffer] : buffers_) buffer_bytes += bytes_of(buffer);
  // Parameters, and as much state as an optimizer has; what nobody touches
  // takes no memory.
  common_ = world_.shared_memory(
      world_.rank() == 0 ? buffer_bytes + 4 * parameter_bytes : 0);
  for (Tensor& parameter : parameters_) {
    const Tensor shared = like_at(parameter, 0, take(bytes_of(parameter)));
    if (world_.rank() == 0) shared.copy_(parameter);
    parameter.set_data(shared);
  }
  for (const auto& [name, buffer] : buffers_) {
    kept_buffers_.push_back(like_at(buffer, 0, take(bytes_of(buffer))));
  }

  const size_t count = parameters_.size();
  gradients_at_ = round_up(sizeof(Table)) +
                  round_up(static_cast<size_t>(shards_) * sizeof(double)) +
                  round_up(most_partials_ * count) +
                  round_up(most_values_ * sizeof(double));
  memory_ =
      world_.shared_memory(gradients_at_ + most_partials_ * parameter_bytes);
  gradients_.resize(static_cast<size_t>(world_.size()));
  for (int rank = 0; rank < world_.size(); ++rank) {
    size_t at = gradients_at_;
    auto& of_rank = gradients_[static_cast<size_t>(rank)];
    of_rank.resize(most_partials_);
    for (auto& of_partial : of_rank) {
      for (const Tensor& parameter : parameters_) {
        of_partial.push_back(torch::from_blob(
            memory_.of(rank).data() + at, parameter.sizes(),
            parameter.strides(), [keep = memory_](void*) {},
            torch::TensorOptions().dtype(parameter.scalar_type())));
        at += bytes_of(parameter);
      }
    }
  }
  end_step();
}

size_t SharedExchange::take(size_t bytes) {
  const size_t at = taken_;
  taken_ += bytes;
  return at;
}

Tensor SharedExchange::like_at(const Tensor& tensor, int, size_t offset) {
  const std::span<std::byte> memory = common_.of(0);
  if (offset + tensor.nbytes() > memory.size()) {
    throw InvalidArgument(
        "ddp", {.what = "the optimizer has more state than was made room for",
                .expected = fmt::format("{} bytes", memory.size()),
                .got = fmt::format("{} bytes", offset + tensor.nbytes())});
  }
  return torch::from_blob(
      memory.data() + offset, tensor.sizes(), tensor.strides(),
      [keep = common_](void*) {},
      torch::TensorOptions().dtype(tensor.scalar_type()));
}

SharedExchange::Table& SharedExchange::table(int rank) const {
  return *reinterpret_cast<Table*>(memory_.of(rank).data());
}

std::span<double> SharedExchange::losses(int rank) const {
  std::byte* at = memory_.of(rank).data() + round_up(sizeof(Table));
  return {reinterpret_cast<double*>(at), static_cast<size_t>(shards_)};
}

std::span<uint8_t> SharedExchange::has_gradient(int rank,
                                                size_t partial) const {
  const size_t count = parameters_.size();
  std::byte* at = reinterpret_cast<std::byte*>(losses(rank).data()) +
                  round_up(losses(rank).size_bytes());
  return {reinterpret_cast<uint8_t*>(at) + partial * count, count};
}

std::span<double> SharedExchange::values(int rank) const {
  std::byte* at = memory_.of(rank).data() + gradients_at_ -
                  round_up(most_values_ * sizeof(double));
  return {reinterpret_cast<double*>(at), most_values_};
}

void SharedExchange::load_buffers() {
  if (world_.rank() == 0) return;
  torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    Tensor buffer = buffers_[i].second;
    buffer.copy_(kept_buffers_[i]);
  }
}

void SharedExchange::publish(const std::vector<PartialSum>& own,
                             const StepTotals& totals) {
  const int rank = world_.rank();
  Table& mine = table(rank);
  mine.samples = totals.samples;
  mine.partials = static_cast<int64_t>(own.size());
  std::copy(totals.losses.begin(), totals.losses.end(), losses(rank).begin());
  for (size_t p = 0; p < own.size(); ++p) {
    mine.ranges[p] = {own[p].first, own[p].last};
    const auto flags = has_gradient(rank, p);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& gradient = own[p].gradients[i];
      flags[i] = gradient.defined();
      if (!gradient.defined()) continue;
      std::memcpy(
          gradients_[static_cast<size_t>(rank)][p][i].mutable_data_ptr(),
          gradient.const_data_ptr(), gradient.nbytes());
    }
  }
}

PartialSum SharedExchange::partial_of(int rank, size_t partial) const {
  const Table::Range range = table(rank).ranges[partial];
  PartialSum sum{.first = range.first, .last = range.last, .gradients = {}};
  const auto flags = has_gradient(rank, partial);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    sum.gradients.push_back(
        flags[i] != 0 ? gradients_[static_cast<size_t>(rank)][partial][i]
                      : Tensor());
  }
  return sum;
}

Reduction SharedExchange::reduce(std::vector<PartialSum> own, int64_t chunks,
                                 StepTotals& totals) {
  publish(own, totals);
  own.clear();
  world_.barrier();
  std::vector<PartialSum> all;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const Table& its = table(rank);
    if (its.samples != totals.samples) {
      throw InvalidArgument(
          "ddp",
          {.what = fmt::format("ranks {} and {} count other samples for one "
                               "step",
                               world_.rank(), rank),
           .expected = fmt::format("{}", totals.samples),
           .got = fmt::format("{}", its.samples),
           .fix = "give every rank as many, or pass the batch's total"});
    }
    for (int64_t p = 0; p < its.partials; ++p) {
      all.push_back(partial_of(rank, static_cast<size_t>(p)));
      const PartialSum& sum = all.back();
      for (int64_t s = sum.first; s < sum.last; ++s) {
        totals.losses[static_cast<size_t>(s)] =
            losses(rank)[static_cast<size_t>(s)];
      }
    }
  }
  return Reduction(std::move(all), chunks, parameters_);
}

ShardRange SharedExchange::own_blocks(int64_t count) const {
  return shards_of_worker(world_.rank(), world_.size(), count);
}

void SharedExchange::share(std::vector<double>& all) {
  const ShardRange own = own_blocks(static_cast<int64_t>(all.size()));
  const auto mine = values(world_.rank());
  std::copy(all.begin() + own.first, all.begin() + own.last,
            mine.begin() + own.first);
  world_.barrier();
  for (int rank = 0; rank < world_.size(); ++rank) {
    const ShardRange its =
        shards_of_worker(rank, world_.size(), static_cast<int64_t>(all.size()));
    const auto theirs = values(rank);
    std::copy(theirs.begin() + its.first, theirs.begin() + its.last,
              all.begin() + its.first);
  }
}

void SharedExchange::end_step() {
  if (world_.rank() == 0) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      kept_buffers_[i].copy_(buffers_[i].second);
    }
  }
  world_.barrier();
}

Tensor SharedExchange::make_state(const Tensor& parameter) {
  return like_at(parameter, 0, take(bytes_of(parameter)));
}

}  // namespace lockstep
