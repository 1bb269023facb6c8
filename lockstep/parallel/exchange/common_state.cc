#include "lockstep/parallel/exchange/common_state.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/minority.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/device/reserved_memory.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/optim/blocks.h"

namespace lockstep {

using torch::Tensor;

namespace {

/// The smallest part. A smaller one would not make a step faster.
constexpr int64_t kMinBytes = 1 << 14;

/// Returns an odd number of parts for `bytes` of state.
int64_t turns_for(int64_t bytes) {
  const int64_t turns =
      std::clamp<int64_t>(bytes / kMinBytes, 1, CommonState::kTurns);
  return turns - 1 + turns % 2;
}

int64_t hash_of(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return static_cast<int64_t>(hash.value());
}

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

/// Ranks whose texts differ.
struct Comparison {
  std::string who;   ///< in words
  size_t right = 0;  ///< a rank with the text of most ranks, if there is one
  size_t wrong = 0;  ///< a rank with another text
};

/// Compares the texts of the ranks. Returns nothing if they are equal.
std::optional<Comparison> compare(const std::vector<std::string>& texts) {
  const auto other = std::find_if(
      texts.begin(), texts.end(),
      [&](const std::string& text) { return text != texts.front(); });
  if (other == texts.end()) return std::nullopt;
  const std::vector<int> few = minority(texts);
  if (few.empty()) {
    const auto wrong = static_cast<size_t>(other - texts.begin());
    return Comparison{.who = fmt::format("rank {} from those of rank 0", wrong),
                      .wrong = wrong};
  }
  const auto wrong = static_cast<size_t>(few.front());
  size_t right = 0;
  while (right < few.size() && few[right] == static_cast<int>(right)) ++right;
  return Comparison{.who = fmt::format("{} {} from those of the other ranks",
                                       few.size() == 1 ? "rank" : "ranks",
                                       fmt::join(few, ", ")),
                    .right = right,
                    .wrong = wrong};
}

}  // namespace

void CommonState::Contents::add(const std::string& kind, size_t p,
                                const Tensor& tensor) {
  const bool is_copied = tensor.layout() == torch::kStrided &&
                         tensor.is_non_overlapping_and_dense() &&
                         tensor.numel() > 0 && !is_shared_tensor(tensor) &&
                         !reserved_number(tensor);
  if (!is_copied) return;
  items_.push_back({.kind = kind, .parameter = p, .tensor = tensor});
  bytes_ += static_cast<int64_t>(tensor.nbytes());
}

std::string CommonState::name_of(const Contents::Item& item) const {
  return item.kind.empty()
             ? fmt::format("parameter '{}'", names_[item.parameter])
             : fmt::format("{} of parameter '{}'", item.kind,
                           names_[item.parameter]);
}

Tensor CommonState::next_values(const Contents& contents) {
  const torch::NoGradGuard no_grad;
  const int64_t turns = compares_all_ ? 1 : turns_for(contents.bytes_);
  const int64_t turn = turns_[contents.optimizer_]++ % turns;
  const int64_t begin = contents.bytes_ * turn / turns;
  const int64_t end = contents.bytes_ * (turn + 1) / turns;
  Checksum on_host;
  Tensor on_device;
  int64_t at = 0;
  for (const Contents::Item& item : contents.items_) {
    const auto size = static_cast<int64_t>(item.tensor.element_size());
    const int64_t last = at + static_cast<int64_t>(item.tensor.nbytes());
    if (at < end && begin < last) {
      const int64_t from = (std::max(begin, at) - at) / size;
      const int64_t to = (std::min(end, last) - at + size - 1) / size;
      const Tensor part = optim::memory_view(item.tensor, from, to - from);
      if (part.is_cpu()) {
        add_elements(on_host, part);
      } else {
        const Tensor sum = integers_of(part).sum(torch::kLong);
        on_device = on_device.defined()
                        ? on_device * 31 + sum.to(on_device.device())
                        : sum;
      }
    }
    at = last;
  }
  const int64_t host = hash_of(on_host.hex());
  return on_device.defined() ? on_device + host
                             : torch::scalar_tensor(host, torch::kLong);
}

CommonState::Digest CommonState::next(const Contents& contents) {
  return {.options = hash_of(contents.options_),
          .values = next_values(contents).item<int64_t>()};
}

void CommonState::explain(const Contents& contents, const ProcessGroup& world) {
  // A rank that made another number of steps compares another part.
  turns_.clear();
  const auto options = world.all_gather_text(contents.options_);
  if (const auto found = compare(options)) {
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kParametersDiffer,
         .what = fmt::format("the options of the optimizer, or the state that "
                             "was loaded into it, differ: {}. Nothing was "
                             "updated",
                             found->who),
         .expected = options[found->right],
         .got =
             fmt::format("{} on rank {}", options[found->wrong], found->wrong),
         .fix = "call the scheduler on every rank in every step, with a value "
                "that is equal on all ranks (the loss of train_step(), or an "
                "all_reduce of it); load the same state on every rank"});
  }
  std::string checksums;
  const auto& items = contents.items_;
  for (const Contents::Item& item : items) {
    checksums += checksum_of(item.tensor);
  }
  const auto all = world.all_gather_text(checksums);
  const size_t length = items.empty() ? 0 : checksums.size() / items.size();
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<std::string> texts;
    for (const std::string& rank_text : all) {
      texts.push_back(
          rank_text.substr(std::min(rank_text.size(), i * length), length));
    }
    const auto found = compare(texts);
    if (!found) continue;
    throw ParallelError(
        "ddp",
        {.code = ErrorCode::kParametersDiffer,
         .what = fmt::format("the values of {} differ: {}. Nothing was updated",
                             name_of(items[i]), found->who),
         .expected = "the same on every rank",
         .got = "a change that not every rank made: a load, an initialization, "
                "a write or an update; or a bit that changed in memory",
         .fix = "make the change on every rank, or on rank 0 before the module "
                "is wrapped; continue from a checkpoint; if the ranks are "
                "meant to differ, set the option verify_ranks(false)"});
  }
}

}  // namespace lockstep
