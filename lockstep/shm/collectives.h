#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/shm/group.h"

namespace lockstep::shm {

/// How the elements of a reduction become one: `output[i]` from inputs[r][i] of
/// every rank r, for i < `elements`. `output` may be one of the inputs. It must
/// do each element alike, wherever it lies: ranks reduce different parts.
struct Reduction {
  using Inputs = std::span<const std::byte* const>;

  size_t element_bytes = 1;  ///< a power of two up to 64
  std::function<void(Inputs inputs, std::byte* output, size_t elements)>
      combine;
  /// As combine(), of `factors[r] * inputs[r]`. Empty where each rank's data is
  /// taken as it is.
  std::function<void(Inputs inputs, std::span<const double> factors,
                     std::byte* output, size_t elements)>
      combine_scaled;
  double factor = 1;  ///< of this rank's data, for combine_scaled()
};

/// Multiplies this rank's data by its factor, in place. For a reduction with
/// combine_scaled(), before any of the functions below but all_reduce_shared().
void scale(std::span<std::byte> data, const Reduction& reduction);

// Each is called by all ranks after Group::begin(), with data of equal size
// where nothing else is said; docs/collectives.md has their costs.

/// In place, on every rank. Up to one_shot_bytes() each rank reduces all of it;
/// above, each rank a part.
void all_reduce(Group& group, std::span<std::byte> data,
                const Reduction& reduction);
/// Such a rank reads kOneShotBytes, from so many slots as there are ranks.
size_t one_shot_bytes(int ranks);
inline constexpr size_t kOneShotBytes = 64 * 1024;

/// In place, where every rank can reach `of_ranks` of all ranks (SharedMemory):
/// each rank reduces a part and writes it to all. Nothing is copied. Called
/// after a sync() that follows the last write to `of_ranks`; the factors of
/// combine_scaled() are those that the ranks announced before it.
void all_reduce_shared(Group& group,
                       std::span<const std::span<std::byte>> of_ranks,
                       const Reduction& reduction);

/// As all_reduce(); `data` of other ranks than `root` is left alone.
void reduce(Group& group, std::span<std::byte> data, int root,
            const Reduction& reduction);
void broadcast(Group& group, std::span<std::byte> data, int root);
/// `outputs` has one for each rank; empty if this rank wants none of it
/// (gather).
void all_gather(Group& group, std::span<const std::byte> input,
                std::span<const std::span<std::byte>> outputs);
/// `inputs`: root's, one for each rank; empty elsewhere.
void scatter(Group& group, std::span<std::byte> output,
             std::span<const std::span<const std::byte>> inputs, int root);
/// `inputs` has one for each rank.
void reduce_scatter(Group& group, std::span<std::byte> output,
                    std::span<const std::span<const std::byte>> inputs,
                    const Reduction& reduction);
/// inputs[r] of rank q becomes outputs[q] of rank r; both of these must have
/// one size, which may differ from pair to pair. Throws CommError if not.
void all_to_all(Group& group, std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs);
void barrier(Group& group);

}  // namespace lockstep::shm
