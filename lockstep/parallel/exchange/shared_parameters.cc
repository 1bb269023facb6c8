// Decides when ranks on one host share the module's parameters, and detects
// writes to them that the engine did not make.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/comm/transport/shared_memory.h"
#include "lockstep/device/random.h"
#include "lockstep/parallel/exchange/shared_exchange.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// Returns a hash of a few elements of a tensor. Not every optimizer increments
/// the version of the tensors that it writes (torch::optim::SGD does not), but
/// each changes nearly all elements.
uint64_t sample_of(const Tensor& tensor) {
  constexpr int64_t kElements = 8;
  const int64_t count = tensor.numel();
  const auto size = std::min<size_t>(tensor.element_size(), sizeof(uint64_t));
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  uint64_t mixed = 0;
  for (int64_t i = 0; i < std::min(count, kElements); ++i) {
    const int64_t at =
        count <= kElements ? i : (count - 1) * i / (kElements - 1);
    uint64_t bits = 0;
    std::memcpy(&bits, data + at * tensor.element_size(), size);
    mixed = mix_seed(mixed, bits);
  }
  return mixed;
}

constexpr const char* kCure =
    "call unshare_parameters() on every rank, then change the parameters there "
    "in the same way; the next train_step() shares them again";

}  // namespace

void SharedExchange::give_up(const Problem& problem) const {
  const ParallelError error("ddp", problem);
  world_.abort(std::string(error.text()));
  throw error;
}

bool SharedExchange::is_in_place(size_t p) const {
  return parameters_[p].const_data_ptr() ==
         shared_parameters_[p].const_data_ptr();
}

void SharedExchange::begin_step(bool is_driven) {
  if (!is_driven) {
    check_unchanged();
    unshare_parameters();
    return;
  }
  size_t first = 0;
  while (first < parameters_.size() && is_in_place(first)) ++first;
  check_unchanged();
  if (first < parameters_.size()) share_parameters(first);
}

void SharedExchange::unshare_parameters() {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (is_in_place(p)) unshare(parameters_[p]);
  }
  seals_.clear();
}

SharedExchange::~SharedExchange() {
  // The module outlives this object, so each rank gets its own copy of the
  // parameters.
  try {
    unshare_parameters();
  } catch (const std::exception& error) {
    log_error("ddp",
              fmt::format("the parameters stay shared: {}", text_of(error)));
  }
}

void SharedExchange::check_requests(size_t first) const {
  const auto count = static_cast<int64_t>(parameters_.size());
  const bool wants = table(world_.rank()).wants_to_share != 0;
  for (int rank = 0; rank < world_.size(); ++rank) {
    const int64_t request = table(rank).wants_to_share;
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
  table(world_.rank()).wants_to_share = static_cast<int64_t>(first) + 1;
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
  }
  note_parameters();
}

void SharedExchange::note_parameters() {
  seals_.clear();
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!is_in_place(p)) {
      seals_.clear();
      return;
    }
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
    give_up({.code = ErrorCode::kChangedWhileShared,
             .what = fmt::format("parameter '{}' was changed outside of "
                                 "train_step() while all ranks share its "
                                 "memory, so once by each of them",
                                 names_[p]),
             .expected = "changes by train_step()'s optimizer alone",
             .got = fmt::format("a change seen by rank {}", world_.rank()),
             .fix = kCure});
  }
}

}  // namespace lockstep
