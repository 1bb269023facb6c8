#pragma once

#include <cstddef>
#include <span>

#include "lockstep/shm/collectives.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep::tcp {

using shm::Reduction;

// Each is called by all ranks after Mesh::begin(), with data of equal size
// where nothing else is said. Every rank sends and receives at most 2(N-1)/N of
// the data, as in a ring, in two steps instead of 2(N-1);
// docs/collectives.md has their costs.

/// In place, on every rank, in the order of `reduction`.
void all_reduce(Mesh& mesh, std::span<std::byte> data,
                const Reduction& reduction);
/// As all_reduce(); `data` of other ranks than `root` is left alone.
void reduce(Mesh& mesh, std::span<std::byte> data, int root,
            const Reduction& reduction);
void broadcast(Mesh& mesh, std::span<std::byte> data, int root);
/// `outputs` has one for each rank.
void all_gather(Mesh& mesh, std::span<const std::byte> input,
                std::span<const std::span<std::byte>> outputs);
/// `outputs`: root's, one for each rank; empty elsewhere.
void gather(Mesh& mesh, std::span<const std::byte> input,
            std::span<const std::span<std::byte>> outputs, int root);
/// `inputs`: root's, one for each rank; empty elsewhere.
void scatter(Mesh& mesh, std::span<std::byte> output,
             std::span<const std::span<const std::byte>> inputs, int root);
/// `inputs` has one for each rank.
void reduce_scatter(Mesh& mesh, std::span<std::byte> output,
                    std::span<const std::span<const std::byte>> inputs,
                    const Reduction& reduction);
/// inputs[r] of rank q becomes outputs[q] of rank r; both of these must have
/// one size, which may differ from pair to pair. Throws CommError if not.
void all_to_all(Mesh& mesh, std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs);
void barrier(Mesh& mesh);

}  // namespace lockstep::tcp
