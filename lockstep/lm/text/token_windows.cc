#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/data/random_stream.h"
#include "lockstep/lm/text/tokens.h"

namespace lockstep::data {
namespace {

void check_ids(std::span<const int64_t> ids, int64_t vocabulary) {
  const auto is_bad = [&](int64_t id) { return id < 0 || id >= vocabulary; };
  const auto bad = std::find_if(ids.begin(), ids.end(), is_bad);
  if (bad == ids.end()) return;
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = fmt::format("the data has the token {}", *bad),
                   .expected = fmt::format("0 to {}", vocabulary - 1),
                   .fix = "the data is of another tokenizer"});
}

}  // namespace

TokenWindows::TokenWindows(std::shared_ptr<const TokenSource> tokens,
                           const TokenWindowOptions& options)
    : tokens_(std::move(tokens)), options_(options) {
  // The last target is one token further on. A shift takes at most context - 1.
  const int64_t spare =
      options_.shift() ? std::max<int64_t>(0, options_.context() - 1) : 0;
  if (options_.context() >= 1) {
    windows_ = (tokens_->size() - 1 - spare) / options_.context();
  }
  if (windows_ >= 1) return;
  throw InvalidArgument(
      "data",
      {.code = ErrorCode::kBadOption,
       .what =
           fmt::format("a text of {} is too short for windows of {}",
                       counted(tokens_->size(), "token"), options_.context()),
       .expected = fmt::format("at least {}", options_.context() + 1 + spare),
       .fix = "use more text, or a shorter context"});
}

int64_t TokenWindows::shift_in(int64_t epoch) const {
  if (!options_.shift()) return 0;
  return RandomStream(StreamUse::kTokenShift,
                      {options_.seed(), static_cast<uint64_t>(epoch)})
      .below(options_.context());
}

// Uses plain loops instead of ATen operators, whose threads are for the
// training.
Batch TokenWindows::read(std::span<const int64_t> indices,
                         int64_t epoch) const {
  const auto count = static_cast<int64_t>(indices.size());
  const int64_t context = options_.context();
  const auto inputs = torch::empty({count, context}, torch::kInt64);
  const auto targets = torch::empty({count, context}, torch::kInt64);
  auto* input = inputs.data_ptr<int64_t>();
  auto* target = targets.data_ptr<int64_t>();
  const int64_t shift = shift_in(epoch);
  std::vector<int64_t> window(static_cast<size_t>(context) + 1);
  for (const int64_t index : indices) {
    tokens_->read(shift + index * context, window);
    check_ids(window, options_.vocabulary());
    input = std::copy(window.begin(), window.end() - 1, input);
    target = std::copy(window.begin() + 1, window.end(), target);
  }
  return {.data = inputs, .target = targets, .samples = count};
}

}  // namespace lockstep::data
