#include "lockstep/parallel/exchange/common_state.h"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/transport/shared_memory.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// The smallest part. A smaller one would not make a step faster.
constexpr int64_t kLeastBytes = 1 << 14;

/// Returns a view of the elements of a dense tensor as integers.
Tensor integers_of(const Tensor& elements) {
  switch (elements.element_size()) {
    case 1:
      return elements.view(torch::kByte);
    case 2:
      return elements.view(torch::kShort);
    case 4:
      return elements.view(torch::kInt);
    default:
      return elements.view(torch::kLong);
  }
}

/// Returns a checksum of 1-d elements, an int64 scalar on their device.
Tensor checksum_on_device(const Tensor& elements) {
  if (!elements.is_cpu()) return integers_of(elements).sum(torch::kLong);
  Checksum sum;
  add_elements(sum, elements);
  Fnv1a hash;
  hash.add(sum.hex());
  return torch::scalar_tensor(static_cast<int64_t>(hash.value()), torch::kLong);
}

/// Returns the ranks whose text is not that of most ranks, or an empty list if
/// no text is that of more than half of them.
std::vector<size_t> minority(const std::vector<std::string_view>& texts) {
  std::map<std::string_view, size_t> counts;
  for (const std::string_view text : texts) ++counts[text];
  for (const auto& [text, count] : counts) {
    if (2 * count <= texts.size()) continue;
    std::vector<size_t> ranks;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (texts[rank] != text) ranks.push_back(rank);
    }
    return ranks;
  }
  return {};
}

/// Says which ranks differ from which others.
std::string difference_of(const std::vector<std::string_view>& texts) {
  const std::vector<size_t> few = minority(texts);
  if (!few.empty()) {
    return fmt::format("{} {} from those of the other ranks",
                       few.size() == 1 ? "rank" : "ranks",
                       fmt::join(few, ", "));
  }
  const auto other = std::find_if(
      texts.begin(), texts.end(),
      [&](const std::string_view text) { return text != texts.front(); });
  return fmt::format("rank {} from those of rank 0", other - texts.begin());
}

}  // namespace

void CommonState::begin(std::string options) {
  options_ = std::move(options);
  items_.clear();
  bytes_ = 0;
}

void CommonState::add(std::string_view kind, size_t p, const Tensor& tensor) {
  const bool is_copied = tensor.layout() == torch::kStrided &&
                         tensor.is_non_overlapping_and_dense() &&
                         tensor.numel() > 0 && !is_shared_tensor(tensor) &&
                         !reserved_number(tensor);
  if (!is_copied) return;
  items_.push_back({.kind = kind, .parameter = p, .tensor = tensor});
  bytes_ += static_cast<int64_t>(tensor.nbytes());
}

std::string CommonState::name_of(const Item& item) const {
  return item.kind.empty()
             ? fmt::format("parameter '{}'", names_[item.parameter])
             : fmt::format("{} of parameter '{}'", item.kind,
                           names_[item.parameter]);
}

int64_t CommonState::options() const {
  Fnv1a hash;
  hash.add(options_);
  return static_cast<int64_t>(hash.value());
}

Tensor CommonState::next_values() {
  const torch::NoGradGuard no_grad;
  const int64_t begin = next_ < bytes_ ? next_ : 0;
  const int64_t end =
      std::min(bytes_, begin + std::max(kLeastBytes, bytes_ / turns_ + 1));
  next_ = end;
  Tensor sum;
  int64_t at = 0;
  for (const Item& item : items_) {
    const auto size = static_cast<int64_t>(item.tensor.element_size());
    const int64_t last = at + static_cast<int64_t>(item.tensor.nbytes());
    if (at < end && begin < last) {
      const int64_t from = (std::max(begin, at) - at) / size;
      const int64_t to = (std::min(end, last) - at + size - 1) / size;
      const Tensor part =
          checksum_on_device(optim::memory_view(item.tensor, from, to - from));
      sum = sum.defined() ? sum * 31 + part.to(sum.device()) : part;
    }
    at = last;
  }
  return sum.defined() ? sum : torch::zeros({}, torch::kLong);
}

CommonState::Digest CommonState::next(const std::vector<Tensor>& parameters,
                                      const optim::Optimizer* optimizer,
                                      const std::vector<size_t>& positions) {
  begin(optimizer ? fmt::format("{} (loaded state: {:x})",
                                optimizer->options_text(), optimizer->loaded())
                  : "");
  for (size_t p = 0; p < parameters.size(); ++p) add("", p, parameters[p]);
  if (optimizer) {
    optimizer->for_each_state(
        [&](const std::string& name, size_t p, const Tensor& tensor) {
          add(name, positions[p], tensor);
        });
  }
  return {.options = options(), .values = next_values().item<int64_t>()};
}

void CommonState::explain(const ProcessGroup& world) {
  // A rank that made another number of steps compares another part.
  next_ = 0;
  const auto options = world.all_gather_text(options_);
  const std::vector<std::string_view> of_ranks(options.begin(), options.end());
  for (size_t rank = 1; rank < options.size(); ++rank) {
    if (options[rank] == options[0]) continue;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kParametersDiffer,
         .what = fmt::format("the options of the optimizer, or the state that "
                             "was loaded into it, differ: {}. Nothing was "
                             "updated",
                             difference_of(of_ranks)),
         .expected = options[0],
         .got = fmt::format("{} on rank {}", options[rank], rank),
         .fix = "call the scheduler on every rank in every step, with a value "
                "that is equal on all ranks (the loss of train_step(), or an "
                "all_reduce of it); load the same state on every rank"});
  }
  std::string checksums;
  for (const Item& item : items_) checksums += checksum_of(item.tensor);
  const auto all = world.all_gather_text(checksums);
  const size_t length = items_.empty() ? 0 : checksums.size() / items_.size();
  for (size_t i = 0; i < items_.size(); ++i) {
    std::vector<std::string_view> texts;
    for (const std::string& of_rank : all) {
      texts.push_back(std::string_view(of_rank).substr(
          std::min(of_rank.size(), i * length), length));
    }
    const bool differs = std::any_of(
        texts.begin(), texts.end(),
        [&](const std::string_view text) { return text != texts.front(); });
    if (!differs) continue;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kParametersDiffer,
         .what = fmt::format("the values of {} differ: {}. Nothing was updated",
                             name_of(items_[i]), difference_of(texts)),
         .expected = "the same on every rank",
         .got = "a change that not every rank made: a load, an initialization, "
                "a write or an update; or a bit that changed in memory",
         .fix = "make the change on every rank, or on rank 0 before the module "
                "is wrapped; continue from a checkpoint"});
  }
}

}  // namespace lockstep
