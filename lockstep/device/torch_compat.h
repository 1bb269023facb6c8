#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/headeronly/version.h>

/// Differences between the supported versions of LibTorch, 2.11 to 2.15. Only
/// this file and comm/torch_backend.h check the version.

namespace lockstep {

/// An owning pointer to a node of the autograd graph: std::shared_ptr in
/// LibTorch 2.11, c10::intrusive_ptr in 2.15.
using NodePtr = decltype(torch::autograd::Edge::function);

inline constexpr bool kNodesAreShared =
    std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>;

/// A pointer that doesn't keep its node alive. lock() returns a NodePtr.
using WeakNodePtr =
    std::conditional_t<kNodesAreShared, std::weak_ptr<torch::autograd::Node>,
                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

/// Makes a `T`, which derives from torch::autograd::Node.
///
/// A long chain of such nodes is freed in a loop, so that it doesn't overflow
/// the stack.
template <class T, class... Args>
auto make_node(Args&&... args) {
  if constexpr (kNodesAreShared) {
    // 2.15 has no deleteNode(), so the name must depend on T.
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...),
                              [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15
using PreMulSumSupplement = c10d::PreMulSumSupplement;
#else
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#endif

/// Returns the reduction that multiplies each rank's values by its `factor`
/// before it sums them.
inline c10d::ReduceOp make_pre_mul_sum(double factor) {
  c10d::ReduceOp op;
  op.op_ = c10d::ReduceOp::PREMUL_SUM;
  op.supplement_ = c10::make_intrusive<PreMulSumSupplement>(factor);
  return op;
}

}  // namespace lockstep
