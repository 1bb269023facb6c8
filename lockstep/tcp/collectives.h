#pragma once

#include <cstddef>
#include <span>

#include "lockstep/shm/collectives.h"
#include "lockstep/tcp/mesh.h"

namespace lockstep::tcp {

// These functions work as those of the same names in shm/collectives.h. All
// ranks call each of them after Mesh::begin(). Every rank sends and receives at
// most 2(N-1)/N of the data, as in a ring, but in two steps instead of 2(N-1).
// docs/collectives.md lists the costs.

void all_reduce(Mesh& mesh, std::span<std::byte> data,
                const transport::Reduction& reduction);
/// Up to this size each rank receives the data of every rank and sums it, in
/// one step instead of two. With two ranks, one step moves as many bytes as
/// two.
inline constexpr size_t kOneStepBytes = 64 * 1024;
void reduce(Mesh& mesh, std::span<std::byte> data, int root,
            const transport::Reduction& reduction);
void broadcast(Mesh& mesh, std::span<std::byte> data, int root);
void all_gather(Mesh& mesh, std::span<const std::byte> input,
                std::span<const std::span<std::byte>> outputs);
/// Gathers the inputs on `root`. There, `outputs` has an entry for each rank.
/// It is empty on other ranks.
void gather(Mesh& mesh, std::span<const std::byte> input,
            std::span<const std::span<std::byte>> outputs, int root);
void scatter(Mesh& mesh, std::span<std::byte> output,
             std::span<const std::span<const std::byte>> inputs, int root);
void reduce_scatter(Mesh& mesh, std::span<std::byte> output,
                    std::span<const std::span<const std::byte>> inputs,
                    const transport::Reduction& reduction);
void all_to_all(Mesh& mesh, std::span<const std::span<std::byte>> outputs,
                std::span<const std::span<const std::byte>> inputs);
void barrier(Mesh& mesh);

}  // namespace lockstep::tcp
