#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <torch/autograd.h>
#include <torch/serialize.h>
#include <torch/types.h>

#include "lockstep/device/torch_compat.h"

namespace lockstep::ddp {

/// Calls back before and after autograd adds a gradient to a parameter.
///
/// Autograd adds gradients in a node of the parameter, its accumulator, which
/// is another one after the parameter got other memory (torch::load). Graphs
/// that were made before keep the former one, so that is kept hooked, too.
///
/// The caller sees to it that one thread at a time calls; autograd may call
/// back in several.
class GradientHooks {
 public:
  /// `before(p)`, and `after(p, incoming)` with what was added, which may be
  /// undefined.
  using Before = std::function<void(size_t p)>;
  using After = std::function<void(size_t p, const torch::Tensor& incoming)>;

  GradientHooks(std::vector<torch::Tensor> parameters, Before before,
                After after);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Hooks into the accumulator that parameter `p`, which must require a
  /// gradient, has now.
  void follow(size_t p);

  // In a backward.

  /// Parameters that it gives no gradient.
  std::vector<size_t> unused_in_backward() const;
  /// Whether it is meant to give gradients to parameters. Not so of
  /// torch::autograd::grad(), and where all parameters are frozen.
  bool trains_in_backward(const std::vector<size_t>& unused) const;
  /// Whether it goes to the memory that parameter `p` had before.
  bool leads_to_former_memory(size_t p) const;
  /// Has autograd call `on_end` when it is done; `on_failure` if it failed.
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
  // Autograd itself keeps them by weak pointers only.
  std::vector<NodePtr> accumulators_;
  std::vector<Hooks> hooks_;  // in those, and in former ones that graphs have
};

}  // namespace lockstep::ddp
