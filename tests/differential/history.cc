#include "tests/differential/history.h"

#include <cmath>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>

#include <fmt/format.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/serialize.h>

namespace lockstep::differential {

using torch::Tensor;

namespace {

class Player {
 public:
  Player(const Case& of, Strategy& strategy, Trace& trace, bool counts_twice)
      : case_(of),
        counts_twice_(counts_twice),
        strategy_(strategy),
        trace_(trace),
        dtype_(dtype_of(of.dtype)) {
    torch::save(std::dynamic_pointer_cast<torch::nn::Module>(
                    strategy.module().shared_from_this()),
                initial_);
    make_optimizers();
  }

  void play(size_t number) {
    at_ = number;
    const Event& event = case_.history[number];
    if (!play_statement(event) && !play_change(event) && !play_step(event) &&
        !play_on_one_rank(event)) {
      throw std::invalid_argument("no such event: " + event.what);
    }
    // A step may undo what a rank changed, as the first broadcast does.
    if (!is_changed_) record_state();
    ++trace_.events;
  }

 private:
  /// A statement of a program.
  bool play_statement(const Event& event) {
    const auto& numbers = event.numbers;
    const std::string& what = event.what;
    if (what == "backward") {
      const auto step =
          strategy_.backward(make(0, numbers[0], Flaw::kNone, -1), event.loss);
      is_pending_ = is_in_no_sync_;
      is_changed_ = false;
      if (case_.ranks == 1) trace_.add(label("loss"), step.loss);
    } else if (what == "train_step") {
      AnyOptimizer* const optimizer = numbers[1] < 0 ? nullptr : at(numbers[1]);
      Strategy::StepOptions options;
      options.clip = static_cast<double>(numbers[2]) / 4;
      if (numbers.size() > 3) {
        options.total_weight = static_cast<double>(numbers[3]);
      }
      const auto step = strategy_.train_step(
          make(0, numbers[0], Flaw::kNone, -1), event.loss, optimizer, options);
      is_pending_ = is_in_no_sync_;
      is_changed_ = false;
      if (!is_pending_) trace_.add(label("loss"), step.loss);
      if (!is_pending_ && keeps_contract(event.loss)) {
        trace_.add(label("weight"), step.weight);
      }
      if (optimizer && options.clip > 0) {
        trace_.add(label("norm"), step.norm, false);
      }
    } else if (what == "update") {
      update(numbers[0], numbers[1]);
    } else if (what == "zero_grad") {
      module().zero_grad(numbers[0] != 0);
      is_pending_ = false;
    } else if (what == "no_sync") {
      is_in_no_sync_ = numbers[0] != 0 && !is_local();
      strategy_.set_synced(numbers[0] == 0);
    } else if (what == "change_member") {
      module().factor = 1.0 + static_cast<double>(numbers[0]);
    } else if (what == "rebuild") {
      strategy_.rebuild();
    } else {
      return false;
    }
    if (!is_pending_) record_gradients();
    return true;
  }

  /// A change of the module or the way it is trained.
  bool play_change(const Event& event) {
    const auto& numbers = event.numbers;
    const std::string& what = event.what;
    if (what == "clip") {
      clip_ = static_cast<double>(numbers[0]) / 4;
    } else if (what == "rate") {
      rate_factor_ = static_cast<double>(numbers[0]) / 2;
      for (AnyOptimizer& each : optimizers_) each.scale_rate(rate_factor_);
    } else if (what == "freeze" || what == "unfreeze") {
      module().parameter(numbers[0]).set_requires_grad(what == "unfreeze");
    } else if (what == "load") {
      load();
    } else if (what == "scale") {
      const torch::NoGradGuard no_grad;
      module().parameter(numbers[0]).mul_(0.5);
    } else if (what == "cast") {
      cast(numbers[0] == 0 ? torch::kFloat : torch::kDouble);
    } else if (what == "hook") {
      Tensor parameter = module().parameter(numbers[0]);
      const int64_t more = numbers.size() > 1 ? numbers[1] : 0;
      if (parameter.requires_grad()) {
        parameter.register_hook(
            [more](const Tensor& g) { return g * 2 + more; });
      }
    } else if (what == "keep_gradients") {
      keep_gradients();
    } else if (what == "set_to_none") {
      set_to_none_ = numbers[0] != 0;
    } else {
      return change(what, numbers);
    }
    return true;
  }

  /// A step in the mode of the case, or an evaluation.
  bool play_step(const Event& event) {
    const auto& numbers = event.numbers;
    const std::string& what = event.what;
    if (what == "step" || what == "accumulate") {
      train(numbers, Flaw::kNone, -1);
    } else if (what == "fail_loss") {
      fail(numbers, Flaw::kInLoss);
    } else if (what == "fail_backward") {
      fail(numbers, Flaw::kInBackward);
    } else if (what == "poison") {
      train({numbers[0]}, Flaw::kNotFinite, numbers[1]);
    } else if (what == "evaluate") {
      evaluate(numbers[0], numbers[1]);
    } else {
      return false;
    }
    return true;
  }

  /// A statement after which one rank differs.
  bool play_on_one_rank(const Event& event) {
    if (!is_of_one_rank(event)) return false;
    const auto& numbers = event.numbers;
    // Ranks may share memory, and the others may still record their state.
    strategy_.wait_for_ranks();
    trace_.add(label(kOneRankDiffers), 1);
    is_changed_ = true;
    const bool is_here = strategy_.is_rank(numbers[0]);
    if (event.what == "one_rank_skips_update") {
      if (!is_here) update(numbers[1], numbers[2]);
    } else if (event.what == "one_rank_no_sync") {
      if (is_here) strategy_.set_synced(false);
      strategy_.backward(make(0, numbers[1], Flaw::kNone, -1), event.loss);
      if (is_here) strategy_.set_synced(true);
    } else if (is_here) {
      const std::string what = event.what.substr(kOneRank.size());
      return change(what, std::span(numbers).subspan(1));
    }
    return true;
  }

  /// Changes the parameters or an optimizer of this rank.
  bool change(std::string_view what, std::span<const int64_t> numbers) {
    if (what == "write") {
      write(module().parameter(numbers[0]), numbers[1], numbers[2] != 0);
    } else if (what == "load_other") {
      load_other_weights();
    } else if (what == "multiply_rate") {
      at(numbers[0])->multiply_rate(static_cast<double>(numbers[1]) / 4);
    } else if (what == "raise_momentum") {
      at(numbers[0])->raise_momentum();
    } else if (what == "add_weight_decay") {
      at(numbers[0])->add_weight_decay(static_cast<double>(numbers[1]) / 8);
    } else if (what == "set_state" && numbers[1] == 0) {
      at(numbers[0])->clear_state();
    } else if (what == "set_state") {
      at(numbers[0])->load_other_state();
    } else {
      return false;
    }
    return true;
  }

  /// Writes other values to a parameter, or another value to its last element.
  static void write(Tensor parameter, int64_t how, bool is_last_only) {
    const torch::NoGradGuard no_grad;
    Tensor values = parameter.detach() * 1.25 + 0.125;
    if (is_last_only) {
      const Tensor last = values.flatten().slice(0, -1);
      values = parameter.detach().clone();
      values.view(-1).slice(0, -1).copy_(last);
    }
    if (how == 0) {
      parameter.copy_(values);
    } else if (how == 1) {
      parameter.data().copy_(values);
    } else {
      parameter.set_data(values);
    }
  }

  void load_other_weights() {
    const auto other = std::make_shared<InterpretedModule>(module().definition);
    for (const Tensor& parameter : other->unique_parameters()) {
      write(parameter, 0, /*is_last_only=*/false);
    }
    std::stringstream state;
    torch::save(std::static_pointer_cast<torch::nn::Module>(other), state);
    load(state);
  }

  InterpretedModule& module() { return strategy_.module(); }
  std::string label(const std::string& what) const {
    return fmt::format("event {} ({}): {}", at_, case_.history[at_].what, what);
  }
  bool is_local() const { return case_.ranks == 1; }

  std::vector<Tensor> trained_parameters() {
    // In a program update() and train_step() would differ.
    return counts_twice_ && !is_program(case_) ? module().parameters()
                                               : module().unique_parameters();
  }

  AnyOptimizer* at(int64_t number) {
    return &optimizers_.at(static_cast<size_t>(number));
  }

  void make_optimizers() {
    optimizers_.clear();
    for (const OptimizerSpec& spec : optimizers_of(case_)) {
      optimizers_.emplace_back(spec, trained_parameters());
      optimizers_.back().scale_rate(rate_factor_);
    }
  }

  Batch make(size_t micro, int64_t samples, Flaw flaw, int64_t sample) {
    Batch batch = make_batch(case_, at_, micro, samples, dtype_, flaw, sample);
    if (case_.has_residual && case_.mode == "forward" && is_local()) {
      if (residual_shape_.empty()) {
        const torch::NoGradGuard no_grad;
        // The shape alone: from a copy, so that no buffer changes.
        InterpretedModule copy(module().definition);
        copy.to(dtype_);
        copy.eval();
        residual_shape_ = leaves_of(copy.forward(batch.nested_inputs(case_)))[0]
                              .sizes()
                              .vec();
      }
      residual_shape_[0] = samples;
      batch.residual_leaf = torch::full(residual_shape_, 0.25,
                                        torch::TensorOptions().dtype(dtype_))
                                .requires_grad_();
      // Before the forward, so that its backward comes after the model's.
      batch.residual = batch.residual_leaf.sin();
    }
    return batch;
  }

  void zero_grad() {
    if (!keeps_gradients_) module().zero_grad(set_to_none_);
    keeps_gradients_ = false;
  }

  void train(const std::vector<int64_t>& sizes, Flaw flaw, int64_t sample) {
    zero_grad();
    if (case_.mode == "train_step") {
      const Batch batch = make(0, sizes[0], flaw, sample);
      const auto step =
          strategy_.train_step(batch, case_.loss, at(0), {.clip = clip_});
      trace_.add(label("loss"), step.loss);
      if (std::isfinite(step.loss)) record_input_gradients(batch);
      if (clip_ > 0 && step.is_finite) trace_.add(label("norm"), step.norm);
      if (!step.is_finite) check_no_bad_gradient();
      return;
    }
    double loss = 0;
    std::vector<Batch> batches;
    std::vector<Strategy::Step> steps;
    for (size_t micro = 0; micro < sizes.size(); ++micro) {
      batches.push_back(make(micro, sizes[micro], flaw, sample));
      steps.push_back(
          case_.mode == "gradients"
              ? strategy_.train_step(batches.back(), case_.loss, nullptr, {})
              : strategy_.backward(batches.back(), case_.loss));
      loss += steps.back().loss;
    }
    if (case_.kind != "ddp") trace_.add(label("loss"), loss);
    for (size_t micro = 0; micro < batches.size(); ++micro) {
      record_input_gradients(batches[micro]);
      record(batches[micro], steps[micro]);
    }
    // With DistributedDataParallel it is the loss of one rank.
    if (!std::isfinite(loss) && case_.kind != "ddp") {
      module().zero_grad();
      return;
    }
    record_gradients();
    clip(trained_parameters(), clip_);
    // Ranks that share their parameters would each update them.
    if (case_.kind == "world") return;
    at(0)->torch()->step();
  }

  void update(int64_t optimizer, int64_t quarters) {
    clip(at(optimizer)->parameters(), static_cast<double>(quarters) / 4);
    at(optimizer)->torch()->step();
  }

  void clip(const std::vector<Tensor>& parameters, double limit) {
    if (limit <= 0) return;
    trace_.add(label("norm"),
               torch::nn::utils::clip_grad_norm_(parameters, limit), false);
  }

  void record(const Batch& batch, const Strategy::Step& step) {
    if (case_.passes_gradient) {
      trace_.add(label("backward() changed a gradient passed to it"),
                 step.has_changed_gradient ? 1 : 0);
    }
    if (batch.residual_leaf.defined()) {
      trace_.add(label("gradient of the residual"), batch.residual_leaf.grad());
    }
  }

  void record_input_gradients(const Batch& batch) {
    if (!is_local() || case_.kind == "ddp" || case_.loss == "force") return;
    for (size_t i = 0; i < batch.inputs.size(); ++i) {
      const Tensor& input = batch.inputs[i];
      // An input that the module changes in place is no leaf any more.
      if (!case_.inputs[i].requires_grad || !input.defined()) continue;
      const Tensor gradient = input.is_leaf() ? input.grad() : Tensor();
      trace_.add(label(fmt::format("gradient of input {}", i)), gradient);
    }
  }

  void check_no_bad_gradient() {
    bool is_bad = false;
    for (const Tensor& parameter : module().unique_parameters()) {
      const Tensor& gradient = parameter.grad();
      is_bad = is_bad || (gradient.defined() &&
                          !torch::isfinite(gradient).all().item<bool>());
    }
    trace_.add(label("NaN was left in .grad"), is_bad ? 1 : 0);
  }

  void fail(const std::vector<int64_t>& numbers, Flaw flaw) {
    bool has_failed = false;
    try {
      train({numbers[0]}, flaw, numbers[1]);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      if (text.find("marked sample") == std::string::npos) throw;
      has_failed = true;
    }
    trace_.add(label("has failed"), has_failed ? 1 : 0);
    // train_step() leaves none behind, and so no zeros.
    module().zero_grad(set_to_none_ || case_.mode == "train_step");
  }

  void evaluate(int64_t how, int64_t samples) {
    const Batch batch = make(0, samples, Flaw::kNone, -1);
    const bool was_training = module().is_training();
    // With several ranks, which samples BatchNorm would see is not defined.
    if (how == 2 || !is_local() || case_.kind == "ddp") module().eval();
    {
      std::optional<torch::NoGradGuard> no_grad;
      std::optional<c10::InferenceMode> inference;
      if (how == 1) {
        inference.emplace();
      } else if (how != 3) {
        no_grad.emplace();
      }
      const auto outputs = leaves_of(strategy_.forward(batch));
      // Only the first is gathered to what it is on one device.
      trace_.add(label("output"), outputs[0], is_local());
    }
    module().train(was_training);
  }

  void load() {
    std::istringstream state(initial_.str());
    load(state);
  }

  void load(std::istream& state) {
    auto module = std::dynamic_pointer_cast<torch::nn::Module>(
        strategy_.module().shared_from_this());
    torch::load(module, state);
  }

  void cast(torch::Dtype dtype) {
    if (c10::isComplexType(dtype_)) return;
    module().to(dtype);
    dtype_ = dtype;
    make_optimizers();
  }

  void keep_gradients() {
    for (Tensor& parameter : module().unique_parameters()) {
      if (!parameter.requires_grad()) continue;
      parameter.mutable_grad() = torch::full_like(parameter.detach(), 0.1);
    }
    keeps_gradients_ = true;
  }

  void record_gradients() {
    for (const auto& item : module().named_parameters()) {
      const Tensor& gradient = item.value().grad();
      trace_.add(label("gradient of " + item.key()), gradient);
    }
  }

  void record_state() {
    strategy_.load_buffers();
    for (const auto& item : module().named_parameters()) {
      trace_.add(label("parameter " + item.key()), item.value());
    }
    for (const auto& item : module().named_buffers()) {
      trace_.add(label("buffer " + item.key()), item.value());
    }
  }

  const Case& case_;
  bool counts_twice_;
  Strategy& strategy_;
  Trace& trace_;
  torch::Dtype dtype_;
  std::vector<AnyOptimizer> optimizers_;
  double rate_factor_ = 1;
  double clip_ = 0;
  bool set_to_none_ = true;
  bool keeps_gradients_ = false;
  bool is_in_no_sync_ = false;
  bool is_pending_ = false;  // .grad has what the ranks have not summed
  bool is_changed_ = false;  // by one rank, since the last step
  size_t at_ = 0;
  std::vector<int64_t> residual_shape_;
  std::ostringstream initial_;
};

}  // namespace

Trace play(const Case& of, const MakeStrategy& make, bool counts_twice) {
  Trace trace;
  try {
    const auto strategy = make();
    Player player(of, *strategy, trace, counts_twice);
    for (size_t i = 0; i < of.history.size(); ++i) player.play(i);
  } catch (const c10::Error& error) {
    trace.error = error.what_without_backtrace();
    if (trace.error.empty()) trace.error = "an exception without a text";
  } catch (const std::exception& error) {
    trace.error = error.what();
    if (trace.error.empty()) trace.error = "an exception without a text";
  }
  return trace;
}

bool is_ordered(const Case& of) {
  const auto count = static_cast<int64_t>(optimizers_of(of).size());
  bool is_local = false, is_pending = false, is_compared = true;
  for (const Event& event : of.history) {
    const bool is_step = event.what == "backward" || event.what == "train_step";
    const bool skips = event.what == "one_rank_skips_update";
    if (is_step) is_pending = is_local;
    if (is_step && !is_local) is_compared = true;
    if (event.what == "no_sync") is_local = event.numbers[0] != 0;
    if (event.what == "zero_grad") is_pending = false;
    if (event.what == "train_step" && event.numbers[1] >= 0) {
      if (is_local) return false;
      is_compared = false;
    }
    if (event.what == "update" || skips) {
      if (is_pending || event.numbers[skips ? 1 : 0] >= count) return false;
      is_compared = false;
    }
    if (is_of_one_rank(event)) {
      if (is_local || is_pending) return false;
      is_compared = false;
    }
  }
  return !is_pending && (is_compared || !has_one_rank_that_differs(of));
}

}  // namespace lockstep::differential
