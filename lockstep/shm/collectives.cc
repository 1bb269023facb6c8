#include "lockstep/shm/collectives.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// What one rank combines at a time when it has the ranks' memory before it:
// it is still in the first-level cache when it is written to the others.
constexpr size_t kBlockBytes = 16 * 1024;

void copy(std::byte* to, ConstBytes from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

/// The part of `data` from `offset`, of `most` bytes at most; empty beyond.
template <typename Span>
Span part(Span data, size_t offset, size_t most) {
  offset = std::min(offset, data.size());
  return data.subspan(offset, std::min(most, data.size() - offset));
}

/// Calls `round(offset)` for the pieces of `step` of `bytes`; once if there is
/// none, for the ranks to meet.
template <typename Round>
void for_each_round(size_t bytes, size_t step, const Round& round) {
  size_t offset = 0;
  do {
    round(offset);
    offset += step;
  } while (offset < bytes);
}

/// Part `index` of `count` of `bytes`: whole cache lines, but for the last.
struct Slice {
  size_t begin, end;
};
Slice slice_of(size_t bytes, int index, int count) {
  const size_t lines = (bytes + 63) / 64;
  const auto cut = [&](int k) {
    const size_t at =
        lines * static_cast<size_t>(k) / static_cast<size_t>(count);
    return std::min(bytes, at * 64);
  };
  return {cut(index), cut(index + 1)};
}

/// A slot cut in one piece for each rank, each a multiple of 64 bytes.
size_t piece_bytes(const Group& group) {
  return kSlotBytes / static_cast<size_t>(group.ranks()) / 64 * 64;
}

std::vector<const std::byte*> addresses(const Group& group, size_t offset) {
  std::vector<const std::byte*> result;
  for (int rank = 0; rank < group.ranks(); ++rank) {
    result.push_back(group.slot(rank).data() + offset);
  }
  return result;
}

void combine(const Reduction& reduction,
             const std::vector<const std::byte*>& inputs, std::byte* output,
             size_t bytes) {
  if (bytes > 0) {
    reduction.combine(inputs, output, bytes / reduction.element_bytes);
  }
}

/// A round of a reduction of `data`, whose result goes to `output`.
void reduce_round(Group& group, ConstBytes data, Bytes output,
                  const Reduction& reduction) {
  copy(group.own_slot().data(), data);
  group.sync();
  if (data.size() <= kOneShotBytes) {
    if (!output.empty()) {
      combine(reduction, addresses(group, 0), output.data(), data.size());
    }
    group.next_round();
    return;
  }
  const Slice own = slice_of(data.size(), group.rank(), group.ranks());
  combine(reduction, addresses(group, own.begin),
          group.own_slot().data() + own.begin, own.end - own.begin);
  group.sync();
  if (!output.empty()) {
    for (int rank = 0; rank < group.ranks(); ++rank) {
      const Slice its = slice_of(data.size(), rank, group.ranks());
      copy(output.data() + its.begin,
           group.slot(rank).subspan(its.begin, its.end - its.begin));
    }
  }
  group.next_round();
}

void reduce_into(Group& group, Bytes data, bool is_wanted,
                 const Reduction& reduction) {
  const size_t step =
      kSlotBytes / reduction.element_bytes * reduction.element_bytes;
  for_each_round(data.size(), step, [&](size_t offset) {
    const Bytes now = part(data, offset, step);
    reduce_round(group, now, is_wanted ? now : Bytes(), reduction);
  });
}

}  // namespace

void all_reduce(Group& group, Bytes data, const Reduction& reduction) {
  reduce_into(group, data, true, reduction);
}

void reduce(Group& group, Bytes data, int root, const Reduction& reduction) {
  reduce_into(group, data, group.rank() == root, reduction);
}

void all_reduce_shared(Group& group, std::span<const Bytes> of_ranks,
                       const Reduction& reduction) {
  const auto own_rank = static_cast<size_t>(group.rank());
  const Bytes own = of_ranks[own_rank];
  const Slice slice = slice_of(own.size(), group.rank(), group.ranks());
  std::vector<const std::byte*> inputs(of_ranks.size());
  for (size_t at = slice.begin; at < slice.end; at += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, slice.end - at);
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = of_ranks[r].data() + at;
    }
    combine(reduction, inputs, own.data() + at, bytes);
    for (size_t r = 0; r < inputs.size(); ++r) {
      if (r != own_rank) copy(of_ranks[r].data() + at, own.subspan(at, bytes));
    }
  }
  group.sync();
}

void broadcast(Group& group, Bytes data, int root) {
  for_each_round(data.size(), kSlotBytes, [&](size_t offset) {
    const Bytes now = part(data, offset, kSlotBytes);
    if (group.rank() == root) copy(group.own_slot().data(), now);
    group.sync();
    if (group.rank() != root) {
      copy(now.data(), group.slot(root).first(now.size()));
    }
    group.next_round();
  });
}

void all_gather(Group& group, ConstBytes input,
                std::span<const Bytes> outputs) {
  for_each_round(input.size(), kSlotBytes, [&](size_t offset) {
    copy(group.own_slot().data(), part(input, offset, kSlotBytes));
    group.sync();
    for (size_t r = 0; r < outputs.size(); ++r) {
      const Bytes now = part(outputs[r], offset, kSlotBytes);
      copy(now.data(), group.slot(static_cast<int>(r)).first(now.size()));
    }
    group.next_round();
  });
}

void scatter(Group& group, Bytes output, std::span<const ConstBytes> inputs,
             int root) {
  const size_t piece = piece_bytes(group);
  for_each_round(output.size(), piece, [&](size_t offset) {
    for (size_t r = 0; r < inputs.size(); ++r) {
      copy(group.own_slot().data() + r * piece, part(inputs[r], offset, piece));
    }
    group.sync();
    const Bytes now = part(output, offset, piece);
    copy(now.data(),
         group.slot(root).subspan(static_cast<size_t>(group.rank()) * piece,
                                  now.size()));
    group.next_round();
  });
}

void reduce_scatter(Group& group, Bytes output,
                    std::span<const ConstBytes> inputs,
                    const Reduction& reduction) {
  const size_t step =
      piece_bytes(group) / reduction.element_bytes * reduction.element_bytes;
  const size_t piece = piece_bytes(group);
  for_each_round(output.size(), step, [&](size_t offset) {
    for (size_t r = 0; r < inputs.size(); ++r) {
      copy(group.own_slot().data() + r * piece, part(inputs[r], offset, step));
    }
    group.sync();
    const Bytes now = part(output, offset, step);
    combine(reduction,
            addresses(group, static_cast<size_t>(group.rank()) * piece),
            now.data(), now.size());
    group.next_round();
  });
}

void all_to_all(Group& group, std::span<const Bytes> outputs,
                std::span<const ConstBytes> inputs) {
  // The sizes go first, where they are checked: a slot holds kMaxRanks.
  static_assert(kMaxRanks * sizeof(uint64_t) <= kSlotBytes);
  for (size_t r = 0; r < inputs.size(); ++r) {
    const uint64_t bytes = inputs[r].size();
    std::memcpy(group.own_slot().data() + r * sizeof(bytes), &bytes,
                sizeof(bytes));
  }
  uint64_t most = 0;
  for (const auto& input : inputs) most = std::max(most, input.size());
  group.announce(most);
  group.sync();
  for (int other = 0; other < group.ranks(); ++other) {
    most = std::max(most, group.announced_by(other));
    uint64_t bytes = 0;
    std::memcpy(&bytes,
                group.slot(other).data() +
                    static_cast<size_t>(group.rank()) * sizeof(bytes),
                sizeof(bytes));
    const size_t expected = outputs[static_cast<size_t>(other)].size();
    if (bytes == expected) continue;
    const CommError error(
        {.code = ErrorCode::kCallsDiffer,
         .what = fmt::format("all_to_all: rank {} sends rank {} another size "
                             "than that expects",
                             other, group.rank()),
         .expected = fmt::format("{} bytes", expected),
         .got = fmt::format("{} bytes", bytes),
         .fix = "make the split sizes of the two agree"});
    group.fail(error.what());
    throw error;
  }
  group.next_round();

  const size_t piece = piece_bytes(group);
  for_each_round(most, piece, [&](size_t offset) {
    for (size_t r = 0; r < inputs.size(); ++r) {
      copy(group.own_slot().data() + r * piece, part(inputs[r], offset, piece));
    }
    group.sync();
    for (size_t r = 0; r < outputs.size(); ++r) {
      const Bytes now = part(outputs[r], offset, piece);
      copy(now.data(),
           group.slot(static_cast<int>(r))
               .subspan(static_cast<size_t>(group.rank()) * piece, now.size()));
    }
    group.next_round();
  });
}

void barrier(Group& group) { group.sync(); }

}  // namespace lockstep::shm
