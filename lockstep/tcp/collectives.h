#pragma once

#include <cstddef>
#include <span>

#include "lockstep/shm/collectives.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep::tcp {

using shm::Reduction;

// All ranks call these after Mesh::begin(), with data of equal size if nothing
// else is said. Every rank sends and receives at most 2(N-1)/N of the data, as
// in a ring, but in two steps instead of 2(N-1). docs/collectives.md has the
// costs.

/// In place, on every rank, in the order of `reduction`.
void all_reduce(Mesh& mesh, std::span<std::byte> data,
                const Reduction& reduction);
/// As all_reduce(), but changes the `data` of `root` only.
void reduce(Mesh& mesh, std::span<std::byte> data, int root,
            const Reduction& reduction);
void broadcast(Mesh& mesh, std::span<std::byte> data, int root);
/// `outputs` has an entry for each rank.
void all_gather(Mesh& mesh, std::span<const std::byte> input,
                std::span<const std::span<std::byte>> outputs);
/// On root, `outputs` has an entry for each rank. It is empty on other ranks.
void gather(Mesh& mesh, std::span<const std::byte> input,
            std::span<const std::span<std::byte>> outputs, int root);
/// On root, `inputs` has an entry for each rank. It is empty on other ranks.
void scatter(Mesh& mesh, std::span<std::byte> output,
             std::span<const std::span<const std::byte>> inputs, int root);
/// `inputs` has an entry for each rank.
void reduce_scatter(Mesh& mesh, std::span<std::byte> output,
                    std::span<const std::span<const std::byte>> inputs,
                    const Reduction& reduction);
/// outputs[q] of rank r gets inputs[r] of rank q. Throws CommError unless these
/// two have the same size, which may differ from pair to pair.
void all_to_all(Mesh& mesh, std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs);
void barrier(Mesh& mesh);

}  // namespace lockstep::tcp
