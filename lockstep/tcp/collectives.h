#pragma once

#include <cstddef>
#include <span>

#include "lockstep/shm/collectives.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep::tcp {

using shm::Reduction;

// All ranks call each of these functions after Mesh::begin(), with data of
// equal size unless noted otherwise. Every rank sends and receives at most
// 2(N-1)/N of the data, as in a ring, but in two steps instead of 2(N-1).
// docs/collectives.md lists the costs.

/// Reduces in place, on every rank, in the order of `reduction`.
void all_reduce(Mesh& mesh, std::span<std::byte> data,
                const Reduction& reduction);
/// Works as all_reduce(), but changes `data` only on `root`.
void reduce(Mesh& mesh, std::span<std::byte> data, int root,
            const Reduction& reduction);
void broadcast(Mesh& mesh, std::span<std::byte> data, int root);
/// Gathers the inputs on every rank. `outputs` has an entry for each rank.
void all_gather(Mesh& mesh, std::span<const std::byte> input,
                std::span<const std::span<std::byte>> outputs);
/// Gathers the inputs on `root`. There, `outputs` has an entry for each rank.
/// It is empty on other ranks.
void gather(Mesh& mesh, std::span<const std::byte> input,
            std::span<const std::span<std::byte>> outputs, int root);
/// Copies inputs[r] of the root to the output of rank r. On the root, `inputs`
/// has an entry for each rank. It is empty on other ranks.
void scatter(Mesh& mesh, std::span<std::byte> output,
             std::span<const std::span<const std::byte>> inputs, int root);
/// Reduces inputs[r] of all ranks to the output of rank r.
void reduce_scatter(Mesh& mesh, std::span<std::byte> output,
                    std::span<const std::span<const std::byte>> inputs,
                    const Reduction& reduction);
/// Copies inputs[r] of rank q to outputs[q] of rank r. Both must have the same
/// size, which may differ between pairs of ranks. Throws CommError otherwise.
void all_to_all(Mesh& mesh, std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs);
void barrier(Mesh& mesh);

}  // namespace lockstep::tcp
