#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "lockstep/base/round_up.h"
#include "lockstep/shm/group.h"
#include "lockstep/transport/reduction.h"

namespace lockstep::shm {

inline constexpr size_t kCacheLine = 64;

/// Returns part `index` of `count` of a span of bytes. Every part has whole
/// cache lines, except the last, so no two ranks write to the same line. The
/// size of a line must be a multiple of the element size.
template <typename Span>
Span part_of(Span data, size_t index, size_t count) {
  const size_t lines = round_up(data.size(), kCacheLine) / kCacheLine;
  const auto cut = [&](size_t k) {
    return std::min(data.size(), lines * k / count * kCacheLine);
  };
  return data.subspan(cut(index), cut(index + 1) - cut(index));
}

// All ranks call each of these functions after Group::begin(), with data of
// equal size unless noted otherwise. docs/collectives.md lists their costs.

/// Reduces in place, on every rank. Up to one_shot_bytes() each rank reduces
/// all of the data. Above that, each rank reduces a part.
void all_reduce(Group& group, std::span<std::byte> data,
                const transport::Reduction& reduction);
/// Returns the largest size that is reduced in one shot. Each rank then reads
/// kOneShotBytes in total from the slots of all ranks.
size_t one_shot_bytes(int ranks);
inline constexpr size_t kOneShotBytes = 64 * 1024;
/// Most bytes that a rank combines in a round. With two ranks, each uses 512
/// KiB of a slot, and therefore 1 MiB of both slots before it writes to the
/// same lines again. By then the lines have left the caches of the cores that
/// read them. Writing to a line in the cache of another core is many times
/// slower.
inline constexpr size_t kMaxPieceBytes = 256 * 1024;

/// Reduces in place memory that every rank can access (SharedMemory).
/// `per_rank` has one span for each rank. Each rank reduces a part and writes
/// the result to the memory of all ranks. Nothing is copied. Call it after a
/// sync() that follows the last write to `per_rank`. The factors of
/// combine_scaled() are those that the ranks announced before that sync().
void all_reduce_shared(Group& group,
                       std::span<const std::span<std::byte>> per_rank,
                       const transport::Reduction& reduction);

/// Works as all_reduce(), but changes `data` only on `root`.
void reduce(Group& group, std::span<std::byte> data, int root,
            const transport::Reduction& reduction);
void broadcast(Group& group, std::span<std::byte> data, int root);
/// Gathers the input of every rank. `outputs` has one span for each rank, or is
/// empty if this rank does not want the result (gather).
void all_gather(Group& group, std::span<const std::byte> input,
                std::span<const std::span<std::byte>> outputs);
/// Copies inputs[r] of the root to the output of rank r. `inputs` has one span
/// for each rank on the root, and is empty on other ranks.
void scatter(Group& group, std::span<std::byte> output,
             std::span<const std::span<const std::byte>> inputs, int root);
/// Reduces inputs[r] of all ranks to the output of rank r.
void reduce_scatter(Group& group, std::span<std::byte> output,
                    std::span<const std::span<const std::byte>> inputs,
                    const transport::Reduction& reduction);
/// Copies inputs[r] of rank q to outputs[q] of rank r. Both must have the same
/// size, which may differ between pairs of ranks. Throws CommError otherwise.
void all_to_all(Group& group, std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs);
void barrier(Group& group);

}  // namespace lockstep::shm
