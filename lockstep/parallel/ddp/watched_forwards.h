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

/// Knows, in a backward, which forwards of a model it goes through, whatever
/// the loss is made of: outputs, derivatives of outputs, or what a forward
/// computed inside.
///
/// A forward is known in the graph in two ways: by a node that stands behind
/// each of its outputs, and by the numbers that autograd gave to the nodes
/// which it made. The first finds a backward before it comes to the model, the
/// second finds one that goes past the outputs.
///
/// The caller sees to it that one thread at a time calls; a node behind an
/// output calls back in autograd's thread.
class WatchedForwards {
 public:
  struct Forward {
    int64_t number = 0;
    int64_t samples = 0;
  };
  /// Called when a backward comes to an output of `forward`.
  using OnBackward = std::function<void(const Forward& forward)>;

  explicit WatchedForwards(OnBackward on_backward)
      : on_backward_(std::move(on_backward)) {}

  /// Before a forward. What it returns is for end().
  uint64_t begin();
  /// After it, in the same thread: the nodes that were made in between are
  /// those of a forward of `samples` samples.
  void end(uint64_t begin, int64_t samples);
  /// Returns `tensor` with a node behind it, as an output of the last forward.
  /// The node keeps `owner` alive, which is called back.
  torch::Tensor put_node(const torch::Tensor& tensor, int64_t samples,
                         std::shared_ptr<void> owner);

  // In a backward.

  /// A watched forward that it goes through; nullptr if it goes through no
  /// such forward.
  const Forward* in_backward() const;
  /// The samples of all that it goes through. `reached` is one of them: the
  /// node that a backward starts from is not in autograd's list.
  int64_t samples_in_backward(const Forward& reached) const;

 private:
  class OutputNode;
  /// How autograd numbers the nodes of graphs: by thread, and in a thread in
  /// the order in which they are made.
  using NodeId = std::pair<uint64_t, uint64_t>;
  /// The nodes that a forward made: from a NodeId to before `end`.
  struct Nodes {
    uint64_t end = 0;
    Forward forward;
  };

  torch::Tensor put_node(const torch::Tensor& tensor, const Forward& forward,
                         std::shared_ptr<void> owner);
  /// The forward that made the node; nullptr if none did.
  const Forward* forward_of(const torch::autograd::Node& node) const;

  OnBackward on_backward_;
  int64_t count_ = 0;  // of forwards
  std::map<NodeId, Nodes> forwards_;
  std::deque<NodeId> by_age_;  // of forwards_
};

}  // namespace lockstep::ddp
