#include "lockstep/parallel/exchange/shared_exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/round_up.h"
#include "lockstep/comm/transport/shared_memory.h"
#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

namespace {

constexpr size_t kTableAlignment = 64;

// Rounds up to whole cache lines.
size_t lines(size_t bytes) { return round_up(bytes, kTableAlignment); }

size_t bytes_of(const Tensor& tensor) { return lines(tensor.nbytes()); }

std::string name_of(const Tensor& parameter, const ModuleHandle& module) {
  for (const auto& [name, tensor] : module.parameters) {
    if (tensor.is_same(parameter)) return name;
  }
  return {};
}

}  // namespace

SharedExchange::SharedExchange(const World& world, const ModuleHandle& module,
                               std::vector<Tensor> parameters, int64_t shards,
                               const std::vector<Device>& devices,
                               int64_t most_partials)
    : world_(world),
      buffers_(module.buffers),
      parameters_(std::move(parameters)),
      shards_(shards),
      most_partials_(static_cast<size_t>(most_partials)),
      most_values_(optim::cut_into_blocks(parameters_).size()) {
  torch::NoGradGuard no_grad;
  size_t parameter_bytes = 0;
  size_t buffer_bytes = 0;
  for (const Tensor& parameter : parameters_) {
    parameter_bytes += bytes_of(parameter);
  }
  for (const auto& [name, buffer] : buffers_) buffer_bytes += bytes_of(buffer);
  // Parameters, and as much state as an optimizer has. Pages that are never
  // touched take no memory.
  common_ = world_.shared_memory(
      world_.rank() == 0 ? buffer_bytes + 4 * parameter_bytes : 0);
  for (Tensor& parameter : parameters_) {
    unshare(parameter);  // it may still be shared by a former group of ranks
    shared_parameters_.push_back(take_like(parameter));
    if (world_.rank() == 0) shared_parameters_.back().copy_(parameter);
    names_.push_back(name_of(parameter, module));
  }
  for (const auto& [name, buffer] : buffers_) {
    kept_buffers_.push_back(take_like(buffer));
  }

  const size_t count = parameters_.size();
  copies_at_ = lines(sizeof(Table)) +
               lines(static_cast<size_t>(shards_) * sizeof(ShardLossTotal)) +
               lines(most_partials_ * count * sizeof(int64_t)) +
               lines(most_partials_ * sizeof(Table::Range)) +
               lines(most_values_ * sizeof(double));
  copy_at_.push_back(0);
  std::vector<int64_t> gradient_bytes;
  for (const Tensor& parameter : parameters_) {
    copy_at_.push_back(copy_at_.back() + bytes_of(parameter));
    gradient_bytes.insert(gradient_bytes.end(), most_partials_,
                          static_cast<int64_t>(parameter.nbytes()));
  }
  const auto tensors =
      DonatedMemory::tensors_of_backward(std::move(gradient_bytes));
  const size_t donated_at = copies_at_ + most_partials_ * parameter_bytes;
  is_copied_.resize(most_partials_ * count);
  seen_.assign(static_cast<size_t>(world_.size()),
               std::vector<Seen>(most_partials_ * count));
  const size_t donated_bytes = DonatedMemory::bytes_for(tensors);
  memory_ = world_.shared_memory(donated_at + donated_bytes * devices.size());
  std::span<std::byte> rest = memory_.of(world_.rank()).subspan(donated_at);
  for (const Device& device : devices) {
    donated_.emplace_back(device, rest.first(donated_bytes), tensors,
                          memory_.owner_of(world_.rank()));
    rest = rest.subspan(donated_bytes);
  }
  end_step();
  for (size_t p = 0; p < count && world_.rank() != 0; ++p) {
    parameters_[p].copy_(shared_parameters_[p]);
  }
}

Tensor SharedExchange::take_like(const Tensor& tensor) {
  const size_t bytes = bytes_of(tensor);
  const size_t size = common_.of(0).size();
  if (taken_ + bytes > size) {
    // State of a further optimizer. All ranks get here at the same time.
    common_ =
        world_.shared_memory(world_.rank() == 0 ? std::max(size, bytes) : 0);
    taken_ = 0;
  }
  const Tensor taken = shared_tensor(common_, 0, taken_, tensor);
  taken_ += bytes;
  return taken;
}

SharedExchange::Table& SharedExchange::table(int rank) const {
  return *reinterpret_cast<Table*>(memory_.of(rank).data());
}

std::span<ShardLossTotal> SharedExchange::losses(int rank) const {
  std::byte* at = memory_.of(rank).data() + lines(sizeof(Table));
  return {reinterpret_cast<ShardLossTotal*>(at), static_cast<size_t>(shards_)};
}

std::span<int64_t> SharedExchange::places(int rank, size_t partial) const {
  const size_t count = parameters_.size();
  std::byte* at = reinterpret_cast<std::byte*>(losses(rank).data()) +
                  lines(losses(rank).size_bytes());
  return {reinterpret_cast<int64_t*>(at) + partial * count, count};
}

std::span<double> SharedExchange::values(int rank) const {
  std::byte* at = memory_.of(rank).data() + copies_at_ -
                  lines(most_values_ * sizeof(double));
  return {reinterpret_cast<double*>(at), most_values_};
}

std::span<SharedExchange::Table::Range> SharedExchange::ranges(int rank) const {
  std::byte* at = reinterpret_cast<std::byte*>(values(rank).data()) -
                  lines(most_partials_ * sizeof(Table::Range));
  return {reinterpret_cast<Table::Range*>(at), most_partials_};
}

SharedExchange::BufferSeal SharedExchange::seal_of(const Tensor& buffer) {
  return {.data = buffer.const_data_ptr(),
          .version = buffer.is_inference() ? 0 : buffer._version()};
}

void SharedExchange::load_buffers() {
  if (world_.rank() == 0) return;
  torch::NoGradGuard no_grad;
  // The version stays, because this does not change the kept values.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < buffer_seals_.size(); ++i) {
    Tensor buffer = buffers_[i].second;
    // Buffers that the caller loaded since then, on every rank, are kept.
    if (seal_of(buffer) == buffer_seals_[i]) buffer.copy_(kept_buffers_[i]);
  }
}

// The buffers' versions would not show the change: a kernel that updates a
// buffer (batch_norm) does not increment its version.
void SharedExchange::forget_buffers() { buffer_seals_.clear(); }

void SharedExchange::publish(const std::vector<PartialSum>& own_partials,
                             const StepTotals& totals) {
  const int rank = world_.rank();
  Table& own_table = table(rank);
  own_table.samples = totals.samples;
  own_table.partials = static_cast<int64_t>(own_partials.size());
  own_table.needs_grad = totals.needs_grad ? 1 : 0;
  own_table.wants_to_share = 0;
  std::copy(totals.shards.begin(), totals.shards.end(), losses(rank).begin());
  for (size_t p = 0; p < own_partials.size(); ++p) {
    ranges(rank)[p] = {own_partials[p].first, own_partials[p].last};
    const auto at = places(rank, p);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at[i] = place(own_partials[p].gradients[i].tensor(), p, i);
    }
  }
}

int64_t SharedExchange::place(const Tensor& gradient, size_t partial,
                              size_t index) {
  if (!gradient.defined()) return -1;
  const std::span<std::byte> own_memory = memory_.of(world_.rank());
  const auto* data = static_cast<const std::byte*>(gradient.const_data_ptr());
  if (std::greater_equal<>()(data, own_memory.data()) &&
      std::less<>()(data, own_memory.data() + own_memory.size())) {
    return data - own_memory.data();
  }
  const size_t at = copies_at_ + partial * copy_at_.back() + copy_at_[index];
  if (gradient.numel() > 0) {
    std::memcpy(own_memory.data() + at, data, gradient.nbytes());
  }
  is_copied_[partial * parameters_.size() + index] = true;
  return static_cast<int64_t>(at);
}

int64_t SharedExchange::copy_bytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < is_copied_.size(); ++i) {
    const Tensor& parameter = parameters_[i % parameters_.size()];
    if (is_copied_[i]) bytes += static_cast<int64_t>(parameter.nbytes());
  }
  return bytes;
}

const Tensor& SharedExchange::gradient_at(int rank, size_t partial,
                                          size_t index, int64_t place) {
  Seen& seen =
      seen_[static_cast<size_t>(rank)][partial * parameters_.size() + index];
  if (seen.place == place) return seen.tensor;
  const Tensor& parameter = parameters_[index];
  const std::span<std::byte> memory = memory_.of(rank);
  if (place % static_cast<int64_t>(kTableAlignment) != 0 ||
      place > static_cast<int64_t>(memory.size() - parameter.nbytes())) {
    throw CommError(
        {.code = ErrorCode::kSharedMemorySetup,
         .what = fmt::format("rank {} published a gradient that is "
                             "not in its memory",
                             rank),
         .got = fmt::format("{} bytes at {} of {}", parameter.nbytes(), place,
                            memory.size())});
  }
  seen = {.place = place,
          .tensor = torch::from_blob(
              memory.data() + place, parameter.sizes(), parameter.strides(),
              [keep = memory_](void*) {},
              torch::TensorOptions().dtype(parameter.scalar_type()))};
  return seen.tensor;
}

PartialSum SharedExchange::partial_of(int rank, size_t partial) {
  const Table::Range range = ranges(rank)[partial];
  PartialSum sum{.first = range.first, .last = range.last, .gradients = {}};
  const auto at = places(rank, partial);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    sum.gradients.emplace_back();
    if (at[i] < 0) continue;
    sum.gradients.back() =
        OwnedGradient::in(gradient_at(rank, partial, i, at[i]));
  }
  return sum;
}

Reduction SharedExchange::reduce(std::vector<PartialSum> own_partials,
                                 int64_t chunks, StepTotals& totals) {
  publish(own_partials, totals);
  published_ = std::move(own_partials);
  barrier(world_);
  check_requests(parameters_.size());
  std::vector<PartialSum> all;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const Table& peer_table = table(rank);
    check_samples(world_.rank(), totals.samples, rank, peer_table.samples);
    totals.needs_grad = totals.needs_grad || peer_table.needs_grad != 0;
    for (int64_t p = 0; p < peer_table.partials; ++p) {
      all.push_back(partial_of(rank, static_cast<size_t>(p)));
      const PartialSum& sum = all.back();
      for (int64_t s = sum.first; s < sum.last; ++s) {
        totals.shards[static_cast<size_t>(s)] =
            losses(rank)[static_cast<size_t>(s)];
      }
    }
  }
  return Reduction(std::move(all), chunks, parameters_);
}

std::vector<size_t> SharedExchange::own_blocks(
    const std::vector<optim::Block>& blocks, const std::vector<size_t>&) const {
  const ShardRange range = shards_of_worker(
      world_.rank(), world_.size(), static_cast<int64_t>(blocks.size()));
  std::vector<size_t> own(static_cast<size_t>(range.last - range.first));
  std::iota(own.begin(), own.end(), static_cast<size_t>(range.first));
  return own;
}

std::vector<Tensor> SharedExchange::whole_sums(std::vector<Tensor> sums) {
  // Wait for the blocks of the other ranks. Copy, because other ranks reuse the
  // shared memory after this step.
  barrier(world_);
  for (Tensor& sum : sums) {
    if (sum.defined()) sum = sum.clone();
  }
  barrier(world_);
  return sums;
}

void SharedExchange::share(std::vector<double>& all) {
  const ShardRange own_range = shards_of_worker(
      world_.rank(), world_.size(), static_cast<int64_t>(all.size()));
  const auto own_values = values(world_.rank());
  std::copy(all.begin() + own_range.first, all.begin() + own_range.last,
            own_values.begin() + own_range.first);
  barrier(world_);
  for (int rank = 0; rank < world_.size(); ++rank) {
    const ShardRange peer_range =
        shards_of_worker(rank, world_.size(), static_cast<int64_t>(all.size()));
    const auto peer_values = values(rank);
    std::copy(peer_values.begin() + peer_range.first,
              peer_values.begin() + peer_range.last,
              all.begin() + peer_range.first);
  }
}

void SharedExchange::end_step() {
  if (world_.rank() == 0) {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      kept_buffers_[i].copy_(buffers_[i].second);
    }
  }
  barrier(world_);
  published_.clear();
  note_parameters();
  buffer_seals_.clear();
  for (const auto& [name, buffer] : buffers_) {
    buffer_seals_.push_back(seal_of(buffer));
  }
}

Tensor SharedExchange::make_state(const Tensor& parameter) {
  return take_like(parameter);
}

}  // namespace lockstep
