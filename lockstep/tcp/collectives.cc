#include "lockstep/tcp/collectives.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "lockstep/base/round_up.h"

namespace lockstep::tcp {
namespace {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;
using shm::part_of;
using transport::Reduction;

// Bytes of each rank that are summed at a time.
constexpr size_t kSegmentBytes = 32 * 1024;
// Number of segments of a rank that are in transit or wait to be summed, for
// ranks on one host. A sum is received into the memory from which its part was
// sent. With so few segments in transit, that memory is then still in the
// second-level cache. With 512 KiB in transit instead of 128 KiB, the sum of 64
// MiB took 1.4 times as long.
constexpr size_t kDepthOnOneHost = 4;
// Between hosts, enough bytes must be in transit for one round trip: 512 KiB
// correspond to 40 Gbit/s at 100 us.
constexpr size_t kDepthBetweenHosts = 16;

size_t depth_of(const Mesh& mesh) {
  return mesh.hosts() == Mesh::Hosts::kOne ? kDepthOnOneHost
                                           : kDepthBetweenHosts;
}

void copy(Bytes to, ConstBytes from) {
  if (from.empty() || to.data() == from.data()) return;
  std::memcpy(to.data(), from.data(), from.size());
}

/// Sums one piece of the data of every rank, segment by segment as they arrive,
/// and passes each sum on.
///
/// The peers' segments arrive in a ring of depth_of() places for each peer. A
/// place is reused when its segment is summed, so the data of a rank that is
/// ahead waits in its socket. This can't deadlock. Consider the first segment
/// that some rank has not summed yet: every rank has sent it, because sending
/// it requires only earlier sums, and nothing before it in any connection has
/// to wait.
class PieceReduction {
 public:
  using OnSum = std::function<void(size_t segment, Bytes sum)>;

  /// `input` is the input of this rank. The sum is written to `sum`, which may
  /// be the same memory.
  PieceReduction(Mesh& mesh, ConstBytes input, Bytes sum, size_t segments,
                 const Reduction& reduction, OnSum on_sum)
      : mesh_(mesh),
        depth_(depth_of(mesh)),
        input_(input),
        sum_(sum),
        segments_(segments),
        reduction_(reduction),
        on_sum_(std::move(on_sum)),
        arrived_(segments),
        inputs_(static_cast<size_t>(mesh.ranks())) {
    place_bytes_ = 0;
    for (size_t k = 0; k < segments; ++k) {
      place_bytes_ = std::max(place_bytes_, part_of(input, k, segments).size());
    }
    place_bytes_ = round_up(place_bytes_, shm::kCacheLine);
    places_ =
        mesh.scratch(place_bytes_ * depth_ * static_cast<size_t>(mesh.ranks()));
  }

  /// Queues receives of one segment from each peer.
  void receive(size_t segment) {
    for (int peer = 0; peer < mesh_.ranks(); ++peer) {
      if (peer == mesh_.rank()) continue;
      mesh_.receive(peer, place(peer, segment), [this, segment] {
        ++arrived_[segment];
        sum_what_is_there();
      });
    }
  }

  /// Returns the number of segments that are queued before anything is summed.
  size_t first_segments() const { return std::min(depth_, segments_); }
  /// Returns whether there is a segment to queue after segment `k` is summed.
  bool has_next(size_t k) const { return next(k) < segments_; }
  size_t next(size_t k) const { return k + depth_; }

 private:
  Bytes place(int peer, size_t segment) const {
    const size_t index = static_cast<size_t>(peer) * depth_ + segment % depth_;
    return places_.subspan(index * place_bytes_,
                           part_of(input_, segment, segments_).size());
  }

  void sum_what_is_there() {
    const auto peers = static_cast<size_t>(mesh_.ranks() - 1);
    while (summed_ < segments_ && arrived_[summed_] == peers) {
      const size_t segment = summed_++;
      for (int rank = 0; rank < mesh_.ranks(); ++rank) {
        inputs_[static_cast<size_t>(rank)] =
            rank == mesh_.rank() ? part_of(input_, segment, segments_).data()
                                 : place(rank, segment).data();
      }
      const Bytes sum = part_of(sum_, segment, segments_);
      reduction_.combine(inputs_, sum.data(),
                         sum.size() / reduction_.element_bytes);
      on_sum_(segment, sum);
    }
  }

  Mesh& mesh_;
  size_t depth_;  // number of segments in transit
  ConstBytes input_;
  Bytes sum_;
  size_t segments_;
  const Reduction& reduction_;
  OnSum on_sum_;
  size_t place_bytes_;
  Bytes places_;
  std::vector<size_t> arrived_;  // number of peers, for each segment
  size_t summed_ = 0;
  std::vector<const std::byte*> inputs_;
};

/// Reduces in one step: each rank receives the data of all ranks and sums it.
void all_reduce_in_one_step(Mesh& mesh, Bytes data,
                            const Reduction& reduction) {
  const auto ranks = static_cast<size_t>(mesh.ranks());
  const size_t stride = round_up(data.size(), shm::kCacheLine);
  const Bytes places = mesh.scratch(stride * ranks);
  std::vector<const std::byte*> inputs(ranks);
  mesh.send_to_all(data);
  for (size_t r = 0; r < ranks; ++r) {
    const Bytes place = places.subspan(r * stride, data.size());
    const bool is_own = static_cast<int>(r) == mesh.rank();
    if (!is_own) mesh.receive(static_cast<int>(r), place);
    inputs[r] = is_own ? data.data() : place.data();
  }
  mesh.complete();
  reduction.combine(inputs, data.data(), data.size() / reduction.element_bytes);
}

/// Reduces in two steps: each rank sums one piece of `data`, and sends the sum
/// to all ranks or only to `root`. The connection from rank p to rank q carries
///
///   c(0) .. c(D-1)  s(0) c(D)  s(1) c(D+1)  ...
///
/// c(k) is segment k of p's part of the piece that q sums, and s(k) is segment
/// k of p's sums, if q gets them. Both ends queue in this order. A sum is
/// received in place of this rank's part of it. The part is no longer needed
/// then, because the rank that computed the sum has received it.
void reduce_in_two_steps(Mesh& mesh, Bytes data, int root,
                         const Reduction& reduction) {
  const auto ranks = static_cast<size_t>(mesh.ranks());
  const auto rank = static_cast<size_t>(mesh.rank());
  const bool gets_sums = root < 0 || mesh.rank() == root;
  const size_t segments = std::max<size_t>(
      1, (data.size() / ranks + kSegmentBytes - 1) / kSegmentBytes);
  const auto segment_of = [&](size_t piece, size_t k) {
    return part_of(part_of(data, piece, ranks), k, segments);
  };
  const auto send_parts = [&](size_t k) {
    for (size_t r = 0; r < ranks; ++r) {
      if (r != rank) mesh.send(static_cast<int>(r), segment_of(r, k));
    }
  };
  const auto receive_sums = [&](size_t k) {
    for (size_t r = 0; r < ranks && gets_sums; ++r) {
      if (r != rank) mesh.receive(static_cast<int>(r), segment_of(r, k));
    }
  };

  const Bytes own_part = part_of(data, rank, ranks);
  std::vector<std::byte> aside(gets_sums ? 0 : own_part.size());
  PieceReduction* pieces = nullptr;
  PieceReduction reduced(mesh, own_part, gets_sums ? own_part : Bytes(aside),
                         segments, reduction, [&](size_t k, Bytes sum) {
                           if (root < 0) {
                             mesh.send_to_all(sum);
                           } else if (!gets_sums) {
                             mesh.send(root, sum);
                           }
                           if (pieces->has_next(k)) {
                             send_parts(pieces->next(k));
                             pieces->receive(pieces->next(k));
                           }
                           if (k + 1 < segments) receive_sums(k + 1);
                         });
  pieces = &reduced;
  for (size_t k = 0; k < reduced.first_segments(); ++k) {
    send_parts(k);
    reduced.receive(k);
  }
  receive_sums(0);
  mesh.complete();
}

}  // namespace

void all_reduce(Mesh& mesh, Bytes data, const Reduction& reduction) {
  if (data.empty()) return barrier(mesh);
  if (data.size() * static_cast<size_t>(mesh.ranks() - 1) <= kOneStepBytes) {
    all_reduce_in_one_step(mesh, data, reduction);
  } else {
    reduce_in_two_steps(mesh, data, -1, reduction);
  }
}

void reduce(Mesh& mesh, Bytes data, int root, const Reduction& reduction) {
  if (data.empty()) return barrier(mesh);
  reduce_in_two_steps(mesh, data, root, reduction);
}

// Sends the data of `root` to all ranks. The root sends one piece to each other
// rank, which passes it on. So no rank sends more than twice the data. Small
// data is sent directly from the root to all ranks.
void broadcast(Mesh& mesh, Bytes data, int root) {
  const auto others = static_cast<size_t>(mesh.ranks() - 1);
  const bool is_root = mesh.rank() == root;
  if (others == 1 || data.size() <= kOneStepBytes) {
    if (is_root) {
      mesh.send_to_all(data);
    } else {
      mesh.receive(root, data);
    }
    return mesh.complete();
  }
  const size_t segments =
      (data.size() / others + kSegmentBytes - 1) / kSegmentBytes;
  // The pieces belong to the ranks other than the root, in order.
  const auto piece_of = [&](int rank) {
    return part_of(data, static_cast<size_t>(rank < root ? rank : rank - 1),
                   others);
  };
  for (int peer = 0; peer < mesh.ranks(); ++peer) {
    if (peer == mesh.rank()) continue;
    if (is_root) {
      mesh.send(peer, piece_of(peer));
    } else if (peer != root) {
      mesh.receive(peer, piece_of(peer));
    }
  }
  for (size_t k = 0; k < segments && !is_root; ++k) {
    const Bytes segment = part_of(piece_of(mesh.rank()), k, segments);
    mesh.receive(root, segment, [&mesh, segment, root] {
      for (int peer = 0; peer < mesh.ranks(); ++peer) {
        if (peer != mesh.rank() && peer != root) mesh.send(peer, segment);
      }
    });
  }
  mesh.complete();
}

void all_gather(Mesh& mesh, ConstBytes input, std::span<const Bytes> outputs) {
  mesh.send_to_all(input);
  for (int peer = 0; peer < mesh.ranks(); ++peer) {
    const Bytes output = outputs[static_cast<size_t>(peer)];
    if (peer != mesh.rank()) mesh.receive(peer, output);
  }
  copy(outputs[static_cast<size_t>(mesh.rank())], input);
  mesh.complete();
}

void gather(Mesh& mesh, ConstBytes input, std::span<const Bytes> outputs,
            int root) {
  if (mesh.rank() != root) {
    mesh.send(root, input);
    return mesh.complete();
  }
  for (int peer = 0; peer < mesh.ranks(); ++peer) {
    const Bytes output = outputs[static_cast<size_t>(peer)];
    if (peer != root) mesh.receive(peer, output);
  }
  copy(outputs[static_cast<size_t>(root)], input);
  mesh.complete();
}

void scatter(Mesh& mesh, Bytes output, std::span<const ConstBytes> inputs,
             int root) {
  if (mesh.rank() != root) {
    mesh.receive(root, output);
    return mesh.complete();
  }
  for (int peer = 0; peer < mesh.ranks(); ++peer) {
    if (peer != root) mesh.send(peer, inputs[static_cast<size_t>(peer)]);
  }
  copy(output, inputs[static_cast<size_t>(root)]);
  mesh.complete();
}

void reduce_scatter(Mesh& mesh, Bytes output,
                    std::span<const ConstBytes> inputs,
                    const Reduction& reduction) {
  if (output.empty()) return barrier(mesh);
  const size_t segments = (output.size() + kSegmentBytes - 1) / kSegmentBytes;
  PieceReduction* pieces = nullptr;
  PieceReduction reduced(mesh, inputs[static_cast<size_t>(mesh.rank())], output,
                         segments, reduction, [&](size_t k, Bytes) {
                           if (pieces->has_next(k)) {
                             pieces->receive(pieces->next(k));
                           }
                         });
  pieces = &reduced;
  for (size_t k = 0; k < reduced.first_segments(); ++k) reduced.receive(k);
  for (int peer = 0; peer < mesh.ranks(); ++peer) {
    if (peer != mesh.rank()) mesh.send(peer, inputs[static_cast<size_t>(peer)]);
  }
  mesh.complete();
}

void all_to_all(Mesh& mesh, std::span<const Bytes> outputs,
                std::span<const ConstBytes> inputs) {
  const auto ranks = static_cast<size_t>(mesh.ranks());
  const auto rank = static_cast<size_t>(mesh.rank());
  // The size is sent before the bytes, because both ends must expect the same.
  std::vector<uint64_t> sizes(ranks), sizes_of_peers(ranks);
  const auto check = [&](size_t peer) {
    const size_t expected = outputs[peer].size();
    if (sizes_of_peers[peer] == expected) return;
    mesh.give_up(transport::sizes_differ(static_cast<int>(peer), mesh.rank(),
                                         expected, sizes_of_peers[peer]));
  };
  sizes_of_peers[rank] = inputs[rank].size();
  check(rank);
  for (size_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    sizes[peer] = inputs[peer].size();
    mesh.send(static_cast<int>(peer),
              std::as_bytes(std::span(&sizes[peer], 1)));
    mesh.send(static_cast<int>(peer), inputs[peer]);
    mesh.receive(static_cast<int>(peer),
                 std::as_writable_bytes(std::span(&sizes_of_peers[peer], 1)),
                 [&check, peer] { check(peer); });
    mesh.receive(static_cast<int>(peer), outputs[peer]);
  }
  copy(outputs[rank], inputs[rank]);
  mesh.complete();
}

void barrier(Mesh& mesh) {
  mesh.send_to_all({});
  for (int peer = 0; peer < mesh.ranks(); ++peer) {
    if (peer != mesh.rank()) mesh.receive(peer, {});
  }
  mesh.complete();
}

}  // namespace lockstep::tcp
