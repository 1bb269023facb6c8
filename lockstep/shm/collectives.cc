#include "lockstep/shm/collectives.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::shm {

using transport::Reduction;
namespace {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

// Bytes that a rank combines at a time. They are still in the first-level cache
// when they are copied to a slot or to the other ranks.
constexpr size_t kBlockBytes = 8 * 1024;

void copy(std::byte* to, ConstBytes from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size());
}

/// Returns at most `most` bytes of `data` from `offset` on; nothing if `offset`
/// is past the end.
template <typename Span>
Span part(Span data, size_t offset, size_t most) {
  offset = std::min(offset, data.size());
  return data.subspan(offset, std::min(most, data.size() - offset));
}

/// Calls `round(offset)` for each piece of `step` bytes. If `bytes` is 0, calls
/// it once, so that the ranks synchronize.
template <typename Round>
void for_each_round(size_t bytes, size_t step, const Round& round) {
  size_t offset = 0;
  do {
    round(offset);
    offset += step;
  } while (offset < bytes);
}

/// Returns the size of a slot divided by the number of ranks, rounded down to a
/// multiple of 64 bytes.
size_t piece_bytes(const Group& group) {
  return kSlotBytes / static_cast<size_t>(group.ranks()) / 64 * 64;
}

void combine(const Reduction& reduction, Reduction::Inputs inputs,
             std::byte* output, size_t bytes) {
  if (bytes > 0) {
    reduction.combine(inputs, output, bytes / reduction.element_bytes);
  }
}

/// Reduces in one round, in which each rank that wants the result reduces all
/// of the data.
void reduce_in_one_shot(Group& group, Bytes data, bool is_wanted,
                        const Reduction& reduction) {
  copy(group.own_slot().data(), data);
  group.sync();
  if (is_wanted) {
    const auto inputs = group.slots_at(0);
    inputs[static_cast<size_t>(group.rank())] = data.data();
    combine(reduction, inputs, data.data(), data.size());
  }
  group.next_round();
}

/// Reduces segment by segment; each rank reduces one piece of a segment. A
/// segment takes two rounds. Its second round is the first round of the next
/// segment, so there is one sync() per segment:
///
///   round k:  copy the pieces of segment k for other ranks into the slot
///             sync()
///             copy out the other ranks' sums of segment k - 1
///             reduce the own piece of segment k, and put the sum in the slot
///
/// Piece r is at place r of a slot. No rank reads the owner's piece in its own
/// slot, so the sum goes there. It is written after the sync() of round k, when
/// all ranks have read the previous sum in that place. It is read until the
/// sync() of round k + 2. Before that sync(), the owner writes only the other
/// places of that slot.
void reduce_by_pieces(Group& group, Bytes data, bool is_wanted,
                      const Reduction& reduction) {
  const int rank = group.rank(), ranks = group.ranks();
  const size_t place = std::min(piece_bytes(group), kMaxPieceBytes);
  const size_t segment_bytes = place * static_cast<size_t>(ranks);
  const auto segments = (data.size() + segment_bytes - 1) / segment_bytes;
  const auto piece_of = [&](size_t segment, int index) {
    return part_of(part_of(data, segment, segments), static_cast<size_t>(index),
                   static_cast<size_t>(ranks));
  };
  for (size_t k = 0;; ++k) {
    const Bytes slot = group.own_slot();
    for (int r = 0; r < ranks && k < segments; ++r) {
      if (r == rank) continue;
      copy(slot.data() + static_cast<size_t>(r) * place, piece_of(k, r));
    }
    group.sync();
    for (int r = 0; r < ranks && k > 0 && is_wanted; ++r) {
      if (r == rank) continue;
      const Bytes piece = piece_of(k - 1, r);
      copy(piece.data(), group.previous_slot(r).subspan(
                             static_cast<size_t>(r) * place, piece.size()));
    }
    // The slot of this round was not used. The next collective may use it while
    // other ranks still read the previous one.
    if (k == segments) return;
    const Bytes own = piece_of(k, rank);
    for (size_t at = 0; at < own.size(); at += kBlockBytes) {
      const Bytes block = part(own, at, kBlockBytes);
      const size_t offset = static_cast<size_t>(rank) * place + at;
      const auto inputs = group.slots_at(offset);
      inputs[static_cast<size_t>(rank)] = block.data();
      std::byte* const sum = slot.data() + offset;
      combine(reduction, inputs, is_wanted ? block.data() : sum, block.size());
      if (is_wanted) copy(sum, block);
    }
    group.next_round();
  }
}

void reduce_into(Group& group, Bytes data, bool is_wanted,
                 const Reduction& reduction) {
  if (data.size() <= one_shot_bytes(group.ranks())) {
    reduce_in_one_shot(group, data, is_wanted, reduction);
  } else {
    reduce_by_pieces(group, data, is_wanted, reduction);
  }
}

}  // namespace

size_t one_shot_bytes(int ranks) {
  return kOneShotBytes / static_cast<size_t>(ranks);
}

void all_reduce(Group& group, Bytes data, const Reduction& reduction) {
  reduce_into(group, data, true, reduction);
}

void reduce(Group& group, Bytes data, int root, const Reduction& reduction) {
  reduce_into(group, data, group.rank() == root, reduction);
}

void all_reduce_shared(Group& group, std::span<const Bytes> per_rank,
                       const Reduction& reduction) {
  const auto own_rank = static_cast<size_t>(group.rank());
  const Bytes own = per_rank[own_rank];
  const Bytes slice = part_of(own, own_rank, per_rank.size());
  const auto begin = static_cast<size_t>(slice.data() - own.data());
  std::vector<const std::byte*> inputs(per_rank.size());
  std::vector<double> factors;
  for (int r = 0; r < group.ranks(); ++r) factors.push_back(group.factor_of(r));
  for (size_t done = 0; done < slice.size(); done += kBlockBytes) {
    const size_t bytes = std::min(kBlockBytes, slice.size() - done);
    const size_t at = begin + done;
    for (size_t r = 0; r < inputs.size(); ++r) {
      inputs[r] = per_rank[r].data() + at;
    }
    if (reduction.combine_scaled) {
      reduction.combine_scaled(inputs, factors, own.data() + at,
                               bytes / reduction.element_bytes);
    } else {
      combine(reduction, inputs, own.data() + at, bytes);
    }
    for (size_t r = 0; r < inputs.size(); ++r) {
      if (r != own_rank) copy(per_rank[r].data() + at, own.subspan(at, bytes));
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
            group.slots_at(static_cast<size_t>(group.rank()) * piece),
            now.data(), now.size());
    group.next_round();
  });
}

void all_to_all(Group& group, std::span<const Bytes> outputs,
                std::span<const ConstBytes> inputs) {
  // The sizes are exchanged first and checked. A slot has room for kMaxRanks.
  static_assert(kMaxRanks * sizeof(uint64_t) <= kSlotBytes);
  for (size_t r = 0; r < inputs.size(); ++r) {
    const uint64_t bytes = inputs[r].size();
    std::memcpy(group.own_slot().data() + r * sizeof(bytes), &bytes,
                sizeof(bytes));
  }
  uint64_t most_of_own = 0;
  for (const auto& input : inputs) {
    most_of_own = std::max(most_of_own, input.size());
  }
  group.announce(most_of_own);
  group.sync();
  const uint64_t most = group.announced().largest;
  for (int other = 0; other < group.ranks(); ++other) {
    uint64_t bytes = 0;
    std::memcpy(&bytes,
                group.slot(other).data() +
                    static_cast<size_t>(group.rank()) * sizeof(bytes),
                sizeof(bytes));
    const size_t expected = outputs[static_cast<size_t>(other)].size();
    if (bytes == expected) continue;
    const CommError error(
        transport::sizes_differ(other, group.rank(), expected, bytes));
    group.abort(text_of(error));
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
