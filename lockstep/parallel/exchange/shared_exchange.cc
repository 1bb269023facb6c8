#include "lockstep/parallel/exchange/shared_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/base/round_up.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

namespace {

constexpr size_t kAlignment = 64;

// Rounds up to whole cache lines.
size_t lines(size_t bytes) { return round_up(bytes, kAlignment); }

size_t bytes_of(const Tensor& tensor) { return lines(tensor.nbytes()); }

int8_t to_number(at::ScalarType type) { return static_cast<int8_t>(type); }

constexpr const char* kFix =
    "call unshare_parameters() (of the model, or in a callback of the Trainer) "
    "on every rank, then change the parameters there in the same way; the next "
    "train_step() shares them again";

}  // namespace

SharedExchange::SharedExchange(const ProcessGroup& world,
                               const ModuleHandle& module,
                               std::vector<Tensor> parameters, int64_t shards,
                               const std::vector<Device>& devices,
                               int64_t most_partials)
    : RankExchange(names_of(parameters, module)),
      world_(world),
      buffers_(module.buffers),
      parameters_(std::move(parameters)),
      names_(names_of(parameters_, module)),
      report_shape_{.shards = static_cast<size_t>(shards),
                    .partials = static_cast<size_t>(most_partials),
                    .parameters = parameters_.size()},
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
  }
  for (const auto& [name, buffer] : buffers_) {
    kept_buffers_.push_back(take_like(buffer));
  }

  const size_t count = parameters_.size();
  const size_t partials = report_shape_.partials;
  copies_at_ =
      StepReport::bytes(report_shape_) + lines(most_values_ * sizeof(double));
  copy_at_.push_back(0);
  std::vector<int64_t> gradient_bytes;
  for (const Tensor& parameter : parameters_) {
    copy_at_.push_back(copy_at_.back() + bytes_of(parameter));
    gradient_bytes.insert(gradient_bytes.end(), partials,
                          static_cast<int64_t>(parameter.nbytes()));
    if (parameter.scalar_type() != at::kFloat) continue;
    // The gradient of a parameter that autocast casts (CastWeights).
    gradient_bytes.insert(gradient_bytes.end(), partials,
                          static_cast<int64_t>(parameter.nbytes()) / 2);
  }
  const auto tensors =
      DonatedMemory::tensors_of_backward(std::move(gradient_bytes));
  const size_t donated_at = copies_at_ + partials * parameter_bytes;
  is_copied_.resize(partials * count);
  seen_.assign(static_cast<size_t>(world_.size()),
               std::vector<Seen>(partials * count));
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

StepReport SharedExchange::report(int rank) const {
  return {memory_.of(rank).data(), report_shape_};
}

std::span<double> SharedExchange::values(int rank) const {
  std::byte* at = memory_.of(rank).data() + StepReport::bytes(report_shape_);
  return {reinterpret_cast<double*>(at), most_values_};
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
  const StepReport own = report(world_.rank());
  own.write(own_partials, totals);
  for (size_t p = 0; p < own_partials.size(); ++p) {
    const auto at = own.places(p);
    const auto types = own.types(p);
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Tensor& gradient = own_partials[p].gradients[i].tensor();
      at[i] = place(gradient, p, i);
      if (gradient.defined()) types[i] = to_number(gradient.scalar_type());
    }
  }
}

int64_t SharedExchange::place(const Tensor& gradient, size_t partial,
                              size_t index) {
  if (!gradient.defined()) return StepReport::kNoGradient;
  if (const auto offset = memory_.offset_of(world_.rank(), gradient)) {
    return static_cast<int64_t>(*offset);
  }
  const size_t at = copies_at_ + partial * copy_at_.back() + copy_at_[index];
  if (gradient.numel() > 0) {
    std::memcpy(memory_.of(world_.rank()).data() + at,
                gradient.const_data_ptr(), gradient.nbytes());
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
                                          size_t index) {
  const int64_t place = report(rank).places(partial)[index];
  const auto type =
      static_cast<at::ScalarType>(report(rank).types(partial)[index]);
  Seen& seen =
      seen_[static_cast<size_t>(rank)][partial * parameters_.size() + index];
  if (seen.place == place && seen.tensor.scalar_type() == type) {
    return seen.tensor;
  }
  const Tensor& parameter = parameters_[index];
  const std::span<std::byte> memory = memory_.of(rank);
  const bool is_known_type =
      type == parameter.scalar_type() ||
      (type == at::kBFloat16 && parameter.scalar_type() == at::kFloat);
  const auto bytes = is_known_type ? static_cast<size_t>(parameter.numel()) *
                                         c10::elementSize(type)
                                   : parameter.nbytes();
  if (!is_known_type || place % static_cast<int64_t>(kAlignment) != 0 ||
      place > static_cast<int64_t>(memory.size() - bytes)) {
    throw CommError({.code = ErrorCode::kNoSharedMemory,
                     .what = fmt::format("rank {} published a gradient that is "
                                         "not in its memory",
                                         rank),
                     .got = fmt::format("{} bytes at {} of {}", bytes, place,
                                        memory.size())});
  }
  seen = {.place = place,
          .tensor = torch::from_blob(
              memory.data() + place, parameter.sizes(), parameter.strides(),
              [keep = memory_](void*) {}, torch::TensorOptions().dtype(type))};
  return seen.tensor;
}

PartialSum SharedExchange::partial_of(int rank, size_t partial) {
  const ShardRange& range = report(rank).ranges()[partial];
  PartialSum sum{.first = range.first, .last = range.last, .gradients = {}};
  const auto at = report(rank).places(partial);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    sum.gradients.emplace_back();
    if (at[i] == StepReport::kNoGradient) continue;
    sum.gradients.back() = OwnedGradient::in(gradient_at(rank, partial, i));
  }
  return sum;
}

Reduction SharedExchange::reduce(std::vector<PartialSum> own_partials,
                                 int64_t chunks, StepTotals& totals) {
  publish(own_partials, totals);
  published_ = std::move(own_partials);
  wait_for_reports();
  std::vector<PartialSum> all;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const StepReport peer = report(rank);
    peer.add_to(totals, world_.rank(), rank);
    for (int64_t p = 0; p < peer.header().partials; ++p) {
      all.push_back(partial_of(rank, static_cast<size_t>(p)));
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

// When the ranks share the module's parameters, and writes to them that the
// engine did not make.

void SharedExchange::give_up(const Problem& problem) const {
  const ParallelError error("ddp", problem);
  world_.abort(std::string(error.text()));
  throw error;
}

bool SharedExchange::is_in_place(size_t p) const {
  return parameters_[p].const_data_ptr() ==
         shared_parameters_[p].const_data_ptr();
}

bool SharedExchange::begin_step(bool is_driven) {
  if (!is_driven) {
    unshare_parameters();
    return false;
  }
  size_t first = 0;
  while (first < parameters_.size() && is_in_place(first)) ++first;
  check_unchanged();
  if (first == parameters_.size()) return false;
  share_parameters(first);
  return true;
}

// The reports are written again only after another collective, so all ranks
// have read them by then.
void SharedExchange::meet() {
  report(world_.rank()).header().wants_to_share = 0;
  wait_for_reports();
}

void SharedExchange::wait_for_reports() const {
  barrier(world_);
  check_requests(parameters_.size());
}

void SharedExchange::unshare_parameters() {
  check_unchanged();
  unshare_all();
}

void SharedExchange::unshare_all() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (is_in_place(p)) unshare(parameters_[p]);
  }
  seals_.clear();
}

SharedExchange::~SharedExchange() {
  // The module outlives this object, so each rank gets its own copy of the
  // parameters.
  try {
    unshare_all();
  } catch (const std::exception& error) {
    log_error("ddp",
              fmt::format("the parameters stay shared: {}", text_of(error)));
  }
}

void SharedExchange::check_requests(size_t first) const {
  const auto count = static_cast<int64_t>(parameters_.size());
  const bool wants = report(world_.rank()).header().wants_to_share != 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const int64_t request = report(rank).header().wants_to_share;
    if ((request != 0) == wants) continue;
    const auto p = static_cast<size_t>(std::min(
        request != 0 ? request - 1 : static_cast<int64_t>(first), count - 1));
    throw ParallelError(
        "ddp", {.code = ErrorCode::kParametersDiffer,
                .what = fmt::format("parameter '{}' was moved (loaded, cast or "
                                    "unshared) on rank {}, but not on rank {}",
                                    names_[p], wants ? world_.rank() : rank,
                                    wants ? rank : world_.rank()),
                .expected = "the same on every rank, as over any backend",
                .fix = "load or cast the model on every rank"});
  }
}

// All ranks must request sharing together. If another rank is in a training
// step instead, check_requests() throws.
void SharedExchange::share_parameters(size_t first) {
  const c10::InferenceMode normal(false);
  torch::NoGradGuard no_grad;
  report(world_.rank()).header().wants_to_share =
      static_cast<int64_t>(first) + 1;
  barrier(world_);
  check_requests(first);
  if (world_.rank() == 0) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (!is_in_place(p)) shared_parameters_[p].copy_(parameters_[p]);
    }
  }
  barrier(world_);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (is_in_place(p)) continue;
    Tensor& parameter = parameters_[p];
    const Tensor& shared = shared_parameters_[p];
    // Compares bytes, so that a NaN equals itself. Both tensors are dense and
    // laid out alike.
    if (std::memcmp(parameter.const_data_ptr(), shared.const_data_ptr(),
                    parameter.nbytes()) != 0) {
      give_up({.code = ErrorCode::kParametersDiffer,
               .what = fmt::format("parameter '{}' of rank {} is not that of "
                                   "rank 0",
                                   names_[p], world_.rank()),
               .expected = "the same values on every rank",
               .fix = "load or change the model in the same way on every "
                      "rank"});
    }
    parameter.set_data(shared);
    // An optimizer may have checksums of what was there before.
    torch::autograd::impl::bump_version(parameter);
  }
  note_parameters();
}

void SharedExchange::note_parameters() {
  seals_.clear();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!is_in_place(p)) return seals_.clear();
    seals_.push_back({.version = parameters_[p]._version(),
                      .sample = sample_of(parameters_[p])});
  }
}

void SharedExchange::check_unchanged() {
  for (size_t p = 0; p < seals_.size(); ++p) {
    // Tensors without elements are never shared.
    if (!is_in_place(p) || parameters_[p].numel() == 0) continue;
    if (parameters_[p]._version() == seals_[p].version &&
        sample_of(parameters_[p]) == seals_[p].sample) {
      continue;
    }
    give_up({.code = ErrorCode::kParameterWritten,
             .what = fmt::format("parameter '{}' was changed outside of "
                                 "train_step() while all ranks share its "
                                 "memory, so once by each of them",
                                 names_[p]),
             .expected = "changes only by train_step()'s optimizer",
             .got = fmt::format("a change seen by rank {}", world_.rank()),
             .fix = kFix});
  }
}

}  // namespace lockstep
