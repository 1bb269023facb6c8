#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/autograd.h>
#include <torch/types.h>

#include "lockstep/device/torch_compat.h"

namespace lockstep::ddp {

/// Runs callbacks before and after autograd adds a gradient to a parameter.
///
/// Autograd adds gradients in a node of the parameter, its accumulator. The
/// parameter gets a new accumulator when its memory is replaced (torch::load).
/// Graphs made earlier keep the former accumulator, so that one stays hooked
/// too.
///
/// The caller must make its calls from one thread at a time. Autograd may run
/// the callbacks in several threads.
class GradientHooks {
 public:
  /// Called as `before(p)`, and as `after(p, incoming)` with the gradient that
  /// was added, which may be undefined.
  using Before = std::function<void(size_t p)>;
  using After = std::function<void(size_t p, const torch::Tensor& incoming)>;

  GradientHooks(std::vector<torch::Tensor> parameters, Before before,
                After after);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Hooks into the current accumulator of parameter `p`, which must require a
  /// gradient.
  void follow(size_t p);

  // Functions to be called in a backward.

  /// Returns the parameters that get no gradient from this backward.
  std::vector<size_t> unused_in_backward() const;
  /// Returns whether this backward gives gradients to parameters. Returns false
  /// in torch::autograd::grad(), and if all parameters are frozen.
  bool trains_in_backward(const std::vector<size_t>& unused) const;
  /// Returns whether this backward reaches the former memory of parameter `p`.
  bool leads_to_former_memory(size_t p) const;
  /// Makes autograd call `on_end` when the backward is done, or `on_failure` if
  /// it failed.
  static void at_end_of_backward(std::function<void()> on_end,
                                 std::function<void()> on_failure);

 private:
  class PreHook;
  struct Hooks {
    size_t p = 0;
    WeakNodePtr accumulator;
    uintptr_t after = 0;
    torch::autograd::FunctionPreHook* before = nullptr;
  };

  void hook(size_t p);

  std::vector<torch::Tensor> parameters_;
  Before before_;
  After after_;
  // Kept alive here, because autograd holds them only by weak pointers.
  std::vector<NodePtr> accumulators_;
  std::vector<Hooks> hooks_;  // in these, and in former ones that graphs use
};

}  // namespace lockstep::ddp
