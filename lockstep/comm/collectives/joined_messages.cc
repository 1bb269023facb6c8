#include "lockstep/comm/collectives/joined_messages.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>

namespace lockstep {
namespace {

constexpr size_t kLargestMessage = 4 << 20;

}  // namespace

bool may_overlap(const std::vector<at::Tensor>& tensors) {
  struct Range {
    const std::byte* begin;
    const std::byte* end;
  };
  std::vector<Range> ranges;
  for (const auto& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      last += (tensor.size(d) - 1) * tensor.stride(d);
    }
    const auto* begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    ranges.push_back(
        {begin, begin + (last + 1) * static_cast<int64_t>(tensor.itemsize())});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
    return std::less<>()(a.begin, b.begin);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (std::less<>()(ranges[i].begin, ranges[i - 1].end)) return true;
  }
  return false;
}

std::vector<std::vector<size_t>> join_small(
    const std::vector<at::Tensor>& tensors, size_t small_bytes) {
  std::vector<std::vector<size_t>> messages;
  std::optional<size_t> joined;  // message that small tensors are added to
  size_t joined_bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t bytes = tensors[i].nbytes();
    if (bytes > small_bytes) {
      messages.push_back({i});
      continue;
    }
    if (!joined || joined_bytes + bytes > kLargestMessage) {
      joined = messages.size();
      joined_bytes = 0;
      messages.emplace_back();
    }
    messages[*joined].push_back(i);
    joined_bytes += bytes;
  }
  return messages;
}

void all_reduce_joined(Collectives& collectives,
                       const std::vector<at::Tensor>& tensors,
                       const c10d::ReduceOp& op, Collectives::Timeout timeout) {
  for (const auto& message :
       join_small(tensors, collectives.small_message_bytes())) {
    std::vector<at::Tensor> list;
    for (const size_t i : message) list.push_back(tensors[i]);
    if (list.size() == 1) {
      collectives.all_reduce(list[0], op, timeout);
    } else {
      collectives.all_reduce_coalesced(list, op, timeout);
    }
  }
}

}  // namespace lockstep
