#include "lockstep/parallel/ddp/gradient_hooks.h"

#include <algorithm>
#include <utility>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace lockstep::ddp {

using torch::Tensor;
using torch::autograd::variable_list;

class GradientHooks::PreHook : public torch::autograd::FunctionPreHook {
 public:
  PreHook(const GradientHooks* hooks, size_t p) : hooks_(hooks), p_(p) {}
  variable_list operator()(const variable_list& gradients) override {
    hooks_->before_(p_);
    return gradients;
  }

 private:
  const GradientHooks* hooks_;
  size_t p_;
};

GradientHooks::GradientHooks(std::vector<Tensor> parameters, Before before,
                             After after)
    : parameters_(std::move(parameters)),
      before_(std::move(before)),
      after_(std::move(after)),
      accumulators_(parameters_.size()) {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (parameters_[p].requires_grad()) hook(p);
  }
}

GradientHooks::~GradientHooks() {
  for (const Hooks& hooks : hooks_) {
    const auto accumulator = hooks.accumulator.lock();
    if (!accumulator) continue;
    accumulator->del_post_hook(hooks.after);
    std::erase_if(accumulator->pre_hooks(), [&](const auto& before) {
      return before.get() == hooks.before;
    });
  }
}

void GradientHooks::hook(size_t p) {
  accumulators_[p] = torch::autograd::impl::grad_accumulator(parameters_[p]);
  auto before = std::make_unique<PreHook>(this, p);
  Hooks hooks{.p = p,
              .accumulator = WeakNodePtr(accumulators_[p]),
              .before = before.get()};
  accumulators_[p]->add_pre_hook(std::move(before));
  hooks.after = accumulators_[p]->add_post_hook(
      std::make_unique<torch::autograd::utils::LambdaPostHook>(
          [this, p](const variable_list& outputs,
                    const variable_list& gradients) {
            after_(p, gradients.empty() ? Tensor() : gradients[0]);
            return outputs;
          }));
  std::erase_if(hooks_,
                [](const Hooks& old) { return old.accumulator.expired(); });
  hooks_.push_back(std::move(hooks));
}

void GradientHooks::follow(size_t p) {
  const auto now = torch::autograd::impl::grad_accumulator(parameters_[p]);
  if (now != accumulators_[p]) hook(p);
}

std::vector<size_t> GradientHooks::unused_in_backward() const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  const bool is_partial = chosen != nullptr && !chosen->empty();
  std::vector<size_t> unused;
  for (size_t p = 0; p < accumulators_.size(); ++p) {
    auto* node = accumulators_[p].get();
    bool is_inside = nodes == nullptr || nodes->count(node) != 0;
    // backward(inputs) and grad() run only the nodes that lead to the inputs.
    if (is_inside && is_partial) {
      const auto found = chosen->find(node);
      is_inside = found != chosen->end() && found->second.needed_;
    }
    if (!is_inside) unused.push_back(p);
  }
  return unused;
}

bool GradientHooks::trains_in_backward(
    const std::vector<size_t>& unused) const {
  if (unused.size() < parameters_.size()) return true;
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen != nullptr && !chosen->empty()) return false;
  // All parameters may be frozen, in which case only the input gets a gradient.
  return std::any_of(
      parameters_.begin(), parameters_.end(),
      [](const Tensor& parameter) { return parameter.requires_grad(); });
}

bool GradientHooks::leads_to_former_memory(size_t p) const {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (const Hooks& hooks : hooks_) {
    const auto accumulator = hooks.accumulator.lock();
    if (hooks.p != p || !accumulator || accumulator == accumulators_[p]) {
      continue;
    }
    if (nodes->count(accumulator.get()) != 0) return true;
  }
  return false;
}

namespace {

/// Autograd calls run() when the backward is done, and destroys the object
/// without calling run() if the backward failed.
class Ending {
 public:
  Ending(std::function<void()> on_end, std::function<void()> on_failure)
      : on_end_(std::move(on_end)), on_failure_(std::move(on_failure)) {}
  ~Ending() {
    if (on_failure_) on_failure_();
  }
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  void run() {
    on_failure_ = nullptr;
    on_end_();
  }

 private:
  std::function<void()> on_end_;
  std::function<void()> on_failure_;
};

}  // namespace

void GradientHooks::at_end_of_backward(std::function<void()> on_end,
                                       std::function<void()> on_failure) {
  auto ending =
      std::make_shared<Ending>(std::move(on_end), std::move(on_failure));
  torch::autograd::Engine::get_default_engine().queue_callback(
      [ending] { ending->run(); });
}

}  // namespace lockstep::ddp
