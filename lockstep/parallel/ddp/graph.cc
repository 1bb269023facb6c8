// What a backward goes through: forwards of the model, and its parameters.
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::ddp {

using torch::Tensor;
using torch::autograd::variable_list;

namespace {

// A graph that is older than so many forwards is known by its outputs alone.
constexpr size_t kMostForwards = 4096;

}  // namespace

/// Stands behind an output of a forward, and says that a backward has come to
/// the model.
class Reducer::OutputNode : public torch::autograd::Node {
 public:
  OutputNode(std::weak_ptr<Reducer> reducer, const Forward& forward)
      : forward(forward), reducer_(std::move(reducer)) {}

  variable_list apply(variable_list&& gradients) override {
    const auto reducer = reducer_.lock();
    if (!reducer) return std::move(gradients);
    reducer->on_output(forward);
    if (!torch::GradMode::is_enabled()) return std::move(gradients);
    // The graph of this derivative may lead to the parameters past the output,
    // but not past the output's gradient, in which it is linear.
    for (Tensor& gradient : gradients) {
      if (gradient.defined()) gradient = reducer->put_node(gradient, forward);
    }
    return std::move(gradients);
  }

  bool is_of(const Reducer& reducer) const {
    return reducer_.lock().get() == &reducer;
  }

  const Forward forward;

 private:
  std::weak_ptr<Reducer> reducer_;
};

uint64_t Reducer::begin_forward() {
  const std::lock_guard lock(mutex_);
  check_usable();
  ++forward_count_;
  if (pass_) {
    give_up(
        {.code = ErrorCode::kNestedPass,
         .what = fmt::format("rank {} called forward() within the backward of "
                             "an earlier one",
                             world_.rank()),
         .fix = "let checkpointed parts of the module call each other, not "
                "the wrapped module"});
  }
  follow_parameters();
  return at::sequence_number::peek();
}

void Reducer::end_forward(uint64_t begin, int64_t samples) {
  if (!is_synced_) return;
  const std::lock_guard lock(mutex_);
  const uint64_t end = at::sequence_number::peek();
  if (begin == end) return;
  const NodeId first{at::RecordFunction::currentThreadId(), begin};
  const auto [place, is_new] = forwards_.insert_or_assign(
      first, ForwardNodes{end, {forward_count_, samples}});
  if (is_new) by_age_.push_back(first);
  if (by_age_.size() <= kMostForwards) return;
  forwards_.erase(by_age_.front());
  by_age_.pop_front();
}

Tensor Reducer::watch(const Tensor& output, int64_t samples) {
  if (!is_synced_ || !output.defined() || !output.requires_grad()) {
    return output;
  }
  return put_node(output, {forward_count_, samples});
}

Tensor Reducer::put_node(const Tensor& tensor, const Forward& forward) {
  // A node for each output: what only an unused one leads to is then not part
  // of the backward.
  auto node = std::make_shared<OutputNode>(weak_from_this(), forward);
  node->set_next_edges(torch::autograd::collect_next_edges(tensor));
  Tensor watched = tensor.detach();
  torch::autograd::set_history(watched, node);
  return watched;
}

const Reducer::Forward* Reducer::forward_of(
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

const Reducer::Forward* Reducer::forward_in_backward() const {
  for (const auto* node :
       *torch::autograd::get_current_graph_task_nodes_in_graph()) {
    const Forward* forward = forward_of(*node);
    if (forward != nullptr) return forward;
  }
  return nullptr;
}

int64_t Reducer::samples_in_backward(const Forward& reached) const {
  // Each forward once, of which there may be several outputs.
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

std::optional<std::vector<size_t>> Reducer::unused_in_backward() {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  const bool is_partial = chosen != nullptr && !chosen->empty();
  std::vector<size_t> unused;
  bool trains = false;
  for (size_t p = 0; p < accumulators_.size(); ++p) {
    auto* node = accumulators_[p].get();
    bool is_inside = nodes == nullptr || nodes->count(node) != 0;
    // backward(inputs) and grad(): only what leads to the inputs.
    if (is_inside && is_partial) {
      const auto found = chosen->find(node);
      is_inside = found != chosen->end() && found->second.needed_;
    }
    trains = trains || parameters_[p].requires_grad();
    if (is_inside) continue;
    check_unreplaced(p);
    unused.push_back(p);
  }
  const bool is_none = unused.size() == parameters_.size();
  // All may be frozen, and the backward that of the input.
  if (is_none && (is_partial || !trains)) return std::nullopt;
  return unused;
}

// The graph is older than what replaced the parameter's memory.
void Reducer::check_unreplaced(size_t p) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (const Hooks& hooks : hooks_) {
    const auto accumulator = hooks.accumulator.lock();
    if (hooks.p != p || accumulator == accumulators_[p]) continue;
    if (!accumulator || nodes->count(accumulator.get()) == 0) continue;
    give_up({.code = ErrorCode::kModuleChanged,
             .what = fmt::format("parameter '{}' got other memory between a "
                                 "forward and its backward",
                                 names_[p]),
             .fix = "load parameters before the forward"});
  }
}

}  // namespace lockstep::ddp
