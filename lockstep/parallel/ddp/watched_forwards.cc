#include "lockstep/parallel/ddp/watched_forwards.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/device/torch_compat.h"

namespace lockstep::ddp {

using torch::Tensor;
using torch::autograd::variable_list;

namespace {

// Graphs older than this many forwards are recognized only by their outputs.
constexpr size_t kMaxForwards = 4096;

}  // namespace

/// Node behind an output of a forward. It reports that a backward has reached
/// the model.
class WatchedForwards::OutputNode : public torch::autograd::Node {
 public:
  OutputNode(WatchedForwards& forwards, const Forward& forward,
             std::shared_ptr<void> owner)
      : forward(forward), forwards_(forwards), owner_(std::move(owner)) {}

  variable_list apply(variable_list&& gradients) override {
    forwards_.on_backward_(forward);
    if (!torch::GradMode::is_enabled()) return std::move(gradients);
    // The graph of this derivative may reach the parameters without going
    // through the output. It always goes through the output's gradient, in
    // which it is linear.
    for (Tensor& gradient : gradients) {
      if (!gradient.defined()) continue;
      gradient = forwards_.put_node(gradient, forward, owner_);
    }
    return std::move(gradients);
  }

  bool is_of(const WatchedForwards& forwards) const {
    return &forwards_ == &forwards;
  }

  const Forward forward;

 private:
  WatchedForwards& forwards_;
  std::shared_ptr<void> owner_;  // owner of forwards_
};

uint64_t WatchedForwards::begin() {
  ++count_;
  return at::sequence_number::peek();
}

void WatchedForwards::end(uint64_t begin, int64_t samples) {
  const uint64_t end = at::sequence_number::peek();
  if (begin == end) return;
  const NodeId first{at::RecordFunction::currentThreadId(), begin};
  const auto [place, is_new] =
      forwards_.insert_or_assign(first, Nodes{end, {count_, samples}});
  if (is_new) by_age_.push_back(first);
  if (by_age_.size() <= kMaxForwards) return;
  forwards_.erase(by_age_.front());
  by_age_.pop_front();
}

Tensor WatchedForwards::put_node(const Tensor& tensor, int64_t samples,
                                 std::shared_ptr<void> owner) {
  return put_node(tensor, Forward{count_, samples}, std::move(owner));
}

Tensor WatchedForwards::put_node(const Tensor& tensor, const Forward& forward,
                                 std::shared_ptr<void> owner) {
  // Each output has its own node. Parts of the model that only lead to unused
  // outputs are then not part of the backward.
  auto node = make_node<OutputNode>(*this, forward, std::move(owner));
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  Tensor watched = tensor.detach();
  torch::autograd::set_history(watched, node);
  return watched;
}

const WatchedForwards::Forward* WatchedForwards::forward_of(
    const torch::autograd::Node& node) const {
  const auto* output = dynamic_cast<const OutputNode*>(&node);
  if (output != nullptr && output->is_of(*this)) return &output->forward;
  const NodeId id{node.thread_id(), node.sequence_nr()};
  const auto next = forwards_.upper_bound(id);
  if (next == forwards_.begin()) return nullptr;
  const auto& [first, nodes] = *std::prev(next);
  const bool is_inside = first.first == id.first && id.second < nodes.end;
  return is_inside ? &nodes.forward : nullptr;
}

const WatchedForwards::Forward* WatchedForwards::in_backward() const {
  for (const auto* node :
       *torch::autograd::get_current_graph_task_nodes_in_graph()) {
    const Forward* forward = forward_of(*node);
    if (forward != nullptr) return forward;
  }
  return nullptr;
}

int64_t WatchedForwards::samples_in_backward(const Forward& reached) const {
  // Counts each forward once, even if several of its outputs are reached.
  std::map<int64_t, int64_t> samples{{reached.number, reached.samples}};
  for (const auto* node :
       *torch::autograd::get_current_graph_task_nodes_in_graph()) {
    const Forward* forward = forward_of(*node);
    if (forward != nullptr) samples[forward->number] = forward->samples;
  }
  int64_t sum = 0;
  for (const auto& [number, count] : samples) sum += count;
  return sum;
}

}  // namespace lockstep::ddp
