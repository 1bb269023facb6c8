// Which gradients a backward brings, and when it has brought them.
#include <map>

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
  OutputNode(std::weak_ptr<Reducer> reducer, int64_t forward, int64_t samples)
      : forward_number(forward),
        samples(samples),
        reducer_(std::move(reducer)) {}
  variable_list apply(variable_list&& gradients) override {
    if (const auto reducer = reducer_.lock()) reducer->on_output();
    return std::move(gradients);
  }

  bool is_of(const Reducer& reducer) const {
    return reducer_.lock().get() == &reducer;
  }

  const int64_t forward_number;
  const int64_t samples;

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

Tensor Reducer::watch(const Tensor& output, int64_t samples) {
  if (!is_synced_ || !output.defined() || !output.requires_grad()) {
    return output;
  }
  // A node for each output: what only an unused one leads to is then not part
  // of the backward.
  auto node =
      std::make_shared<OutputNode>(weak_from_this(), forwards_, samples);
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
    check_unmoved(p);
    unused.push_back(p);
  }
  const bool is_none = unused.size() == parameters_.size();
  // All may be frozen, and the backward that of the input.
  if (is_none && (is_partial || !trains)) return std::nullopt;
  return unused;
}

void Reducer::check_unmoved(size_t p) {
  const auto now =
      torch::autograd::impl::try_get_grad_accumulator(parameters_[p]);
  if (!now || now == accumulators_[p]) return;
  give_up({.what = fmt::format("parameter '{}' was moved or cast after the "
                               "module was wrapped",
                               names_[p]),
           .expected = "to(device) or to(dtype) before",
           .fix = "wrap the module again"});
}

int64_t Reducer::samples_in_backward() const {
  // Each forward once, of which there may be several outputs.
  std::map<int64_t, int64_t> samples;
  for (auto* node : *torch::autograd::get_current_graph_task_nodes_in_graph()) {
    const auto* output = dynamic_cast<const OutputNode*>(node);
    if (output == nullptr || !output->is_of(*this)) continue;
    samples[output->forward_number] = output->samples;
  }
  int64_t sum = 0;
  for (const auto& [forward, count] : samples) sum += count;
  return sum;
}

Reducer::Round Reducer::next_round() {
  if (joining_ || options_.average() == GradientAverage::kSamples) {
    return agree(true, samples_in_backward());
  }
  Round round{.active = {}};
  if (options_.average() == GradientAverage::kRanks) {
    round.weight = 1.0 / world_.size();
  }
  return round;
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
  const auto unused = unused_in_backward();
  if (!unused) return;
  if (torch::GradMode::is_enabled()) {
    give_up({.what = "a backward over several ranks can't be differentiated",
             .expected = "create_graph=false",
             .got = "create_graph=true",
             .fix = "take the inner derivative with torch::autograd::grad()"});
  }
  const bool is_static = options_.static_graph();
  if (!unused->empty() && !is_static && !options_.find_unused_parameters()) {
    give_up(
        {.what = fmt::format("parameters of rank {} get no gradient in this "
                             "backward: {}. Nothing was updated",
                             world_.rank(), names_of(*unused)),
         .expected = "every parameter to take part in the loss",
         .fix = "set find_unused_parameters(true) if that varies from step to "
                "step, static_graph(true) if it never does or if parts of the "
                "model are computed again in the backward, or freeze them "
                "before wrapping (requires_grad_(false))"});
  }
  Pass pass = new_pass(next_round());
  pass.task = task;
  pass.only_counts = is_static && expected_.empty();
  if (pass.only_counts) {
    pass.awaited.assign(parameters_.size(), 0);
  } else if (is_static) {
    pass.awaited = expected_;
  } else {
    for (const size_t p : *unused) pass.awaited[p] = 0;
  }
  pass_ = std::move(pass);
  auto ending = std::make_shared<Ending>(weak_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback(
      [ending] { ending->run(); });
  // Parts that are computed again change them again.
  if (!is_static) send_buffers();
  if (options_.average() == GradientAverage::kNone) set_aside();
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

// Of sums that are added up, only this backward's may be summed again.
void Reducer::set_aside() {
  pass_->kept.resize(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const bool is_mixed = is_unsynced_[p] || last_task_[p] == pass_->task;
    Tensor& gradient = parameters_[p].mutable_grad();
    if (!gradient.defined() || is_mixed) continue;
    pass_->kept[p] = gradient.clone();
    gradient.reset();
  }
}

void Reducer::on_gradient(size_t p, bool is_defined) {
  const std::lock_guard lock(mutex_);
  const int task = torch::autograd::get_current_graph_task_id();
  if (!pass_) {
    if (!is_defined) return;
    last_task_[p] = task;
    is_unsynced_[p] = true;
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
  try {
    finish_pass();
  } catch (const std::exception& error) {
    if (failure_.empty()) failure_ = error.what();
    world_.fail(failure_);
    pass_.reset();
    throw;
  }
}

void Reducer::finish_pass() {
  check_complete();
  if (options_.static_graph()) send_buffers();
  if (pass_->only_counts) settle_static_graph();
  if (options_.find_unused_parameters() && !options_.static_graph()) {
    exchange_used();
  }
  wait_for_works();
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
