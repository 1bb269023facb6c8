#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include <torch/autograd.h>
#include <torch/types.h>

namespace lockstep::ddp {

/// Finds out, in a backward, which forwards of a model it goes through. The
/// loss may be computed from outputs, from derivatives of outputs, or from
/// values inside a forward.
///
/// A forward is recognized in the graph in two ways: by a node behind each of
/// its outputs, and by the numbers that autograd gave to the nodes it made. The
/// first detects a backward before it reaches the model. The second detects a
/// backward that does not go through the outputs.
///
/// The caller must make its calls from one thread at a time. A node behind an
/// output runs its callback in autograd's thread.
class WatchedForwards {
 public:
  struct Forward {
    int64_t number = 0;
    int64_t samples = 0;
  };
  /// Called when a backward reaches an output of `forward`.
  using OnBackward = std::function<void(const Forward& forward)>;

  explicit WatchedForwards(OnBackward on_backward)
      : on_backward_(std::move(on_backward)) {}

  /// Must be called before a forward. Pass the result to end().
  uint64_t begin();
  /// Must be called after the forward, in the same thread. The nodes made in
  /// between belong to a forward of `samples` samples.
  void end(uint64_t begin, int64_t samples);
  /// Returns `tensor` with a node behind it, as an output of the last forward.
  /// The node keeps `owner`, which receives the callback, alive.
  torch::Tensor put_node(const torch::Tensor& tensor, int64_t samples,
                         std::shared_ptr<void> owner);

  // Functions to be called in a backward.

  /// Returns a watched forward that this backward goes through, or nullptr if
  /// there is no such forward.
  const Forward* in_backward() const;
  /// Returns the number of samples of all forwards that this backward goes
  /// through. `reached` is one of them, because the node that a backward starts
  /// from is not in autograd's list.
  int64_t samples_in_backward(const Forward& reached) const;

 private:
  class OutputNode;
  /// Autograd's number of a graph node: its thread, and its position in the
  /// order in which the thread made its nodes.
  using NodeId = std::pair<uint64_t, uint64_t>;
  /// Nodes that a forward made: from a NodeId up to, but not including, `end`.
  struct Nodes {
    uint64_t end = 0;
    Forward forward;
  };

  torch::Tensor put_node(const torch::Tensor& tensor, const Forward& forward,
                         std::shared_ptr<void> owner);
  /// Returns the forward that made the node, or nullptr if there is no such
  /// forward.
  const Forward* forward_of(const torch::autograd::Node& node) const;

  OnBackward on_backward_;
  int64_t count_ = 0;  // number of forwards
  std::map<NodeId, Nodes> forwards_;
  std::deque<NodeId> by_age_;  // keys of forwards_, oldest first
};

}  // namespace lockstep::ddp
