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

void Reducer::on_output(const Forward& forward) {
  const std::lock_guard lock(mutex_);
  check_usable();
  const int task = torch::autograd::get_current_graph_task_id();
  if (pass_ && pass_->task == task) return;
  if (pass_) {
    give_up({.code = ErrorCode::kNestedPass,
             .what = fmt::format("rank {} started a backward of the model "
                                 "within another one",
                                 world_.rank())});
  }
  open_pass(task, forward);
}

// A derivative's graph, or that of something inside the model, leads to the
// parameters past the outputs.
void Reducer::before_gradient(size_t p) {
  const std::lock_guard lock(mutex_);
  if (pass_) return;
  const int task = torch::autograd::get_current_graph_task_id();
  if (task != unsynced_task_) {
    if (const Forward* forward = forward_in_backward()) {
      check_usable();
      return open_pass(task, *forward);
    }
    unsynced_task_ = task;
  }
  if (options_.average() == GradientAverage::kNone) note_mixture(p);
}

Reducer::Round Reducer::next_round(const Forward& reached) {
  if (joining_ || options_.average() == GradientAverage::kSamples) {
    return agree(true, samples_in_backward(reached));
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

void Reducer::open_pass(int task, const Forward& reached) {
  const auto unused = unused_in_backward();
  if (!unused) return;
  if (torch::GradMode::is_enabled()) {
    give_up({.code = ErrorCode::kDoubleBackward,
             .what = "a backward over several ranks can't be differentiated",
             .expected = "create_graph=false",
             .got = "create_graph=true",
             .fix = "take the inner derivative with torch::autograd::grad()"});
  }
  const bool is_static = options_.static_graph();
  if (!unused->empty() && !is_static && !options_.find_unused_parameters()) {
    give_up(
        {.code = ErrorCode::kUnusedParameters,
         .what = fmt::format("parameters of rank {} get no gradient in this "
                             "backward: {}. Nothing was updated",
                             world_.rank(), names_of(*unused)),
         .expected = "every parameter to take part in the loss",
         .fix = "set find_unused_parameters(true) if that varies from step to "
                "step, static_graph(true) if it never does or if parts of the "
                "model are computed again in the backward, or freeze them "
                "before wrapping (requires_grad_(false))"});
  }
  Pass pass = new_pass(next_round(reached));
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
  exchange_changes();
  // Parts that are computed again change them again.
  if (!is_static) send_buffers();
  if (!sums_to_average()) set_aside();
  if (!pass_->only_counts) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      if (pass_->awaited[p] == 0) arrive(p, false);
    }
  }
}

void Reducer::on_unsynced_gradient(size_t p, const Tensor& incoming) {
  if (!incoming.defined()) return;
  is_unsynced_[p] = true;
  own_gradient(p, incoming);
}

void Reducer::on_gradient(size_t p, const Tensor& incoming) {
  const std::lock_guard lock(mutex_);
  if (!pass_) return on_unsynced_gradient(p, incoming);
  const int task = torch::autograd::get_current_graph_task_id();
  Pass& pass = *pass_;
  const bool is_static = options_.static_graph();
  if (pass.task != task && !is_static) {
    give_up({.code = ErrorCode::kRepeatedGradient,
             .what = fmt::format("parameter '{}' got a gradient in a backward "
                                 "within the backward (checkpointing?)",
                                 names_[p]),
             .fix = "set static_graph(true)"});
  }
  const bool is_defined = incoming.defined();
  const bool stays = pass.only_counts || pass.awaited[p] > 1;
  if (stays || !options_.gradient_as_bucket_view()) own_gradient(p, incoming);
  if (pass.only_counts) {
    if (pass.awaited[p]++ == 0) pass.arrivals.push_back(p);
    pass.has_gradient[p] = pass.has_gradient[p] || is_defined;
    return;
  }
  if (pass.awaited[p] == 0) {
    give_up({.code = ErrorCode::kRepeatedGradient,
             .what = fmt::format(
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
  check_same_parameters();
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
      .code = ErrorCode::kUnusedParameters,
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

void Reducer::check_same_parameters() {
  if (!pass_->changes.defined()) return;
  const Tensor changes = pass_->changes.cpu();
  const auto* largest = changes.const_data_ptr<int64_t>();
  // The largest complement is that of the smallest.
  if (largest[0] == ~largest[1]) return;
  const auto different = compare_parameters(world_, parameters_);
  if (different.places.empty()) return;
  give_up({.code = ErrorCode::kParametersDiffer,
           .what = fmt::format("parameters of rank {} differ from those of "
                               "rank 0: {}. Nothing was updated",
                               different.rank, names_of(different.places)),
           .expected = "the same on every rank",
           .got = "parameters that some ranks loaded, or wrote to, alone",
           .fix = "load them on every rank, or on rank 0 before the module is "
                  "wrapped"});
}

void Reducer::settle_static_graph() {
  Pass& pass = *pass_;
  expected_ = pass.awaited;
  exchange_used();
  const auto arrivals = std::exchange(pass.arrivals, {});
  for (const size_t p : arrivals) arrive(p, pass.has_gradient[p]);
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
