#include "lockstep/comm/transport/joined_messages.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <utility>

namespace lockstep {
namespace {

constexpr size_t kLargestMessage = 4 << 20;

/// Returns the all-reduce if it may be joined with others. Each call of a
/// premul sum may have another factor.
const AllReduce* joinable(const Collective& collective) {
  const auto* all_reduce = std::get_if<AllReduce>(&collective);
  return all_reduce && all_reduce->op.op_ != c10d::ReduceOp::PREMUL_SUM
             ? all_reduce
             : nullptr;
}

bool are_alike(const AllReduce& a, const AllReduce& b) {
  return a.tensor.scalar_type() == b.tensor.scalar_type() &&
         a.tensor.device() == b.tensor.device() && a.op.op_ == b.op.op_;
}

/// Appends consecutive all-reduces that may be joined. Their order only matters
/// if their tensors share memory.
void append_all_reduces(std::span<const Collective> all_reduces,
                        size_t small_bytes, std::vector<Collective>& joined) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : all_reduces) {
    tensors.push_back(joinable(each)->tensor);
  }
  if (all_reduces.size() < 2 || may_overlap(tensors)) {
    joined.insert(joined.end(), all_reduces.begin(), all_reduces.end());
    return;
  }
  std::vector<bool> is_done(all_reduces.size());
  for (size_t first = 0; first < all_reduces.size(); ++first) {
    if (is_done[first]) continue;
    const AllReduce& example = *joinable(all_reduces[first]);
    std::vector<at::Tensor> alike;
    for (size_t i = first; i < all_reduces.size(); ++i) {
      if (is_done[i] || !are_alike(*joinable(all_reduces[i]), example)) {
        continue;
      }
      is_done[i] = true;
      alike.push_back(tensors[i]);
    }
    append_joined(alike, example.op, small_bytes, joined);
  }
}

}  // namespace

void append_joined(const std::vector<at::Tensor>& tensors,
                   const c10d::ReduceOp& op, size_t small_bytes,
                   std::vector<Collective>& joined) {
  for (const auto& message : join_small(tensors, small_bytes)) {
    if (message.size() == 1) {
      joined.push_back(AllReduce{tensors[message[0]], op});
      continue;
    }
    AllReduceCoalesced coalesced{.tensors = {}, .op = op};
    for (const size_t i : message) coalesced.tensors.push_back(tensors[i]);
    joined.push_back(std::move(coalesced));
  }
}

std::vector<Collective> join_all_reduces(
    const std::vector<Collective>& collectives, size_t small_bytes) {
  std::vector<Collective> joined;
  std::span<const Collective> rest = collectives;
  while (!rest.empty()) {
    size_t count = 0;
    while (count < rest.size() && joinable(rest[count])) ++count;
    if (count == 0) {
      joined.push_back(rest[0]);
      count = 1;
    } else {
      append_all_reduces(rest.first(count), small_bytes, joined);
    }
    rest = rest.subspan(count);
  }
  return joined;
}

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
}  // namespace lockstep
