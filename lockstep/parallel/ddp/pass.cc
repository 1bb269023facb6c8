// Which gradients a backward brings, and when it has brought them.
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/ddp/reducer.h"

namespace lockstep::ddp {

using torch::Tensor;
using torch::autograd::variable_list;

/// Says that a backward has come to the model.
class Reducer::OutputNode : public torch::autograd::Node {
 public:
  explicit OutputNode(std::weak_ptr<Reducer> reducer)
      : reducer_(std::move(reducer)) {}
  variable_list apply(variable_list&& gradients) override {
    if (const auto reducer = reducer_.lock()) reducer->on_output();
    return std::move(gradients);
  }

 private:
  std::weak_ptr<Reducer> reducer_;
};

/// Autograd calls it when the backward is done, or drops it when that failed.
class Reducer::Ending {
 public:
  explicit Ending(std::weak_ptr<Reducer> reducer)
      : reducer_(std::move(reducer)) {}
  ~Ending() {
    const auto reducer = reducer_.lock();
    if (reducer && !is_done_) reducer->abandon();
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  void run() {
    is_done_ = true;
    if (const auto reducer = reducer_.lock()) reducer->close_pass();
  }

 private:
  std::weak_ptr<Reducer> reducer_;
  bool is_done_ = false;
};

Tensor Reducer::watch(const Tensor& output) {
  if (!round_.is_synced || !output.defined() || !output.requires_grad()) {
    return output;
  }
  // A node for each output: what only an unused one leads to is then not part
  // of the backward.
  auto node = std::make_shared<OutputNode>(weak_from_this());
  node->set_next_edges(torch::autograd::collect_next_edges(output));
  Tensor watched = output.detach();
  torch::autograd::set_history(watched, node);
  return watched;
}

void Reducer::on_output() {
  const std::lock_guard lock(mutex_);
  check_usable();
  const int task = torch::autograd::get_current_graph_task_id();
  if (pass_ && pass_->task == task) return;
  if (pass_) {
    give_up({.what = fmt::format("rank {} started a backward of the model "
                                 "within another one",
                                 world_.rank())});
  }
  open_pass(task);
}

std::vector<size_t> Reducer::outside_of_graph() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  std::vector<size_t> outside;
  for (size_t p = 0; p < accumulators_.size(); ++p) {
    auto* node = accumulators_[p].get();
    bool is_inside = nodes == nullptr || nodes->count(node) != 0;
    // backward(inputs) and grad(): only what leads to the inputs.
    if (is_inside && chosen != nullptr && !chosen->empty()) {
      const auto found = chosen->find(node);
      is_inside = found != chosen->end() && found->second.needed_;
    }
    if (!is_inside) outside.push_back(p);
  }
  return outside;
}

Reducer::Pass Reducer::new_pass(const Round& round) const {
  Pass pass{.round = round,
            .awaited = std::vector<int64_t>(parameters_.size(), 1),
            .missing = {},
            .pending = {},
            .arrivals = {},
            .has_gradient = std::vector<bool>(parameters_.size()),
            .is_used = {},
            .works = {}};
  for (const Bucket& bucket : buckets_) {
    pass.pending.push_back(bucket.places.size());
  }
  return pass;
}

void Reducer::open_pass(int task) {
  const std::vector<size_t> outside = outside_of_graph();
  // torch::autograd::grad() of something else: no gradient is accumulated.
  if (outside.size() == parameters_.size()) return;
  if (torch::GradMode::is_enabled()) {
    give_up({.what = "a backward over several ranks can't be differentiated",
             .expected = "create_graph=false",
             .got = "create_graph=true",
             .fix = "take the inner derivative with torch::autograd::grad()"});
  }
  const bool is_static = options_.static_graph();
  if (!outside.empty() && !is_static && !options_.find_unused_parameters()) {
    give_up(
        {.what = fmt::format("parameters of rank {} get no gradient in this "
                             "backward: {}. Nothing was updated",
                             world_.rank(), names_of(outside)),
         .expected = "every parameter to take part in the loss",
         .fix = "set find_unused_parameters(true) if that varies from step to "
                "step, static_graph(true) if it never does or if parts of the "
                "model are computed again in the backward, or freeze them "
                "before wrapping (requires_grad_(false))"});
  }
  Pass pass = new_pass(round_);
  pass.task = task;
  pass.only_counts = is_static && expected_.empty();
  if (pass.only_counts) {
    pass.awaited.assign(parameters_.size(), 0);
  } else if (is_static) {
    pass.awaited = expected_;
  } else {
    for (const size_t p : outside) pass.awaited[p] = 0;
  }
  pass_ = std::move(pass);
  auto ending = std::make_shared<Ending>(weak_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback(
      [ending] { ending->run(); });
  send_buffers();
  if (!pass_->only_counts) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (pass_->awaited[p] == 0) arrive(p, false);
    }
  }
  // A parameter that the loss uses beside the model may have been first.
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (last_task_[p] != task) continue;
    if (pass_->only_counts) {
      ++pass_->awaited[p];
      pass_->arrivals.push_back(p);
    } else if (pass_->awaited[p] > 0 && --pass_->awaited[p] == 0) {
      arrive(p, true);
    }
  }
}

void Reducer::on_gradient(size_t p, bool is_defined) {
  const std::lock_guard lock(mutex_);
  const int task = torch::autograd::get_current_graph_task_id();
  if (!pass_) {
    if (is_defined) last_task_[p] = task;
    return;
  }
  Pass& pass = *pass_;
  const bool is_static = options_.static_graph();
  if (pass.task != task && !is_static) {
    give_up({.what = fmt::format("parameter '{}' got a gradient in a backward "
                                 "within the backward (checkpointing?)",
                                 names_[p]),
             .fix = "set static_graph(true)"});
  }
  if (pass.only_counts) {
    if (pass.awaited[p]++ == 0) pass.arrivals.push_back(p);
    return;
  }
  if (pass.awaited[p] == 0) {
    give_up({.what = fmt::format(
                 "parameter '{}' got more gradients than {}", names_[p],
                 is_static ? "in the first step" : "one in this backward"),
             .fix = is_static ? "leave static_graph off: the graph changes"
                              : "set static_graph(true)"});
  }
  if (!is_defined && !is_static && !options_.find_unused_parameters()) {
    pass.missing.push_back(p);
  }
  if (--pass.awaited[p] == 0) {
    arrive(p, is_static ? parameters_[p].grad().defined() : is_defined);
  }
}

void Reducer::close_pass() {
  const std::lock_guard lock(mutex_);
  check_complete();
  try {
    if (pass_->only_counts) settle_static_graph();
    if (options_.find_unused_parameters() && !options_.static_graph()) {
      exchange_used();
    }
    wait_for_works();
  } catch (const std::exception& error) {
    failure_ = error.what();
    world_.fail(failure_);
    pass_.reset();
    throw;
  }
  write_back();
  const Pass pass = std::move(*pass_);
  pass_.reset();
  follow_arrivals(pass.round.root, pass.arrivals);
}

void Reducer::check_complete() {
  std::vector<size_t> missing = pass_->missing;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (!pass_->only_counts && pass_->awaited[p] > 0) missing.push_back(p);
  }
  if (missing.empty()) return;
  const std::string names = names_of(missing);
  const bool is_static = options_.static_graph();
  const Problem problem{
      .what = fmt::format(
          "parameters of rank {} got {} in this backward: {}. "
          "Nothing was updated",
          world_.rank(),
          is_static ? "fewer gradients than in the first step" : "no gradient",
          names),
      .fix = is_static ? "leave static_graph off: the graph changes"
                       : "set find_unused_parameters(true)"};
  give_up(problem);
}

void Reducer::settle_static_graph() {
  Pass& pass = *pass_;
  expected_ = pass.awaited;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    pass.has_gradient[p] = expected_[p] > 0;
  }
  exchange_used();
  const auto arrivals = std::exchange(pass.arrivals, {});
  for (const size_t p : arrivals) arrive(p, true);
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (expected_[p] == 0) arrive(p, false);
  }
}

void Reducer::abandon() noexcept {
  const std::lock_guard lock(mutex_);
  if (!pass_) return;
  pass_.reset();
  if (!failure_.empty()) return;
  failure_ = fmt::format("the backward of rank {} ended with an exception",
                         world_.rank());
  world_.fail("[ddp] " + failure_);
}

}  // namespace lockstep::ddp
