#include "lockstep/parallel/reduction/reduction.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <ATen/Dispatch.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/round_up.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/bfloat16_loops.h"
#include "lockstep/device/intra_op.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/links/special_links.h"

namespace lockstep {

using optim::Block;
using torch::Tensor;

bool is_tree_node(int64_t first, int64_t last, int64_t shards) {
  int64_t low = 0;
  int64_t high = shards;
  while (high - low > last - first) {
    const int64_t middle = low + left_branch(high - low);
    if (first < middle) {
      high = middle;
    } else {
      low = middle;
    }
  }
  return low == first && high == last;
}

namespace {

/// Computes out[i] = a[i] + b[i]. `out` may be `a`.
template <typename T>
void add_elements(T* out, const T* a, const T* b, int64_t count) {
  // Compilers vectorize a loop only if its stores can't change what it reads
  // next. Therefore a few sums are collected before they are stored.
  constexpr int64_t kLine = 64 / sizeof(T);
  std::array<T, kLine> sums;
  int64_t i = 0;
  for (; i + kLine <= count; i += kLine) {
    for (int64_t j = 0; j < kLine; ++j) sums[j] = a[i + j] + b[i + j];
    std::copy(sums.begin(), sums.end(), out + i);
  }
  for (; i < count; ++i) out[i] = a[i] + b[i];
}

/// Computes out[i] = a[i] + b[i] in float, for gradients in float or bfloat16.
void add_narrow(float* out, const void* a, at::ScalarType a_type, const void* b,
                at::ScalarType b_type, int64_t count) {
  // A sum of two numbers does not depend on their order.
  if (b_type == at::kFloat) {
    std::swap(a, b);
    std::swap(a_type, b_type);
  }
  if (b_type == at::kFloat) {
    return add_elements(out, static_cast<const float*>(a),
                        static_cast<const float*>(b), count);
  }
  const auto* const right = static_cast<const c10::BFloat16*>(b);
  if (a_type == at::kFloat) {
    add_wide(static_cast<const float*>(a), right, out, count);
  } else {
    add_wide(static_cast<const c10::BFloat16*>(a), right, out, count);
  }
}

/// Computes out[i] = a[i] + b[i] for elements of one type.
void add_memory(void* out, const void* a, const void* b, int64_t count,
                at::ScalarType type) {
  AT_DISPATCH_FLOATING_AND_COMPLEX_TYPES_AND2(
      at::kHalf, at::kBFloat16, type, "add_memory", [&] {
        add_elements(static_cast<scalar_t*>(out),
                     static_cast<const scalar_t*>(a),
                     static_cast<const scalar_t*>(b), count);
      });
}

/// Computes sum += other for tensors with the same layout on accelerators.
/// Copies `other` in pieces, so that the device of `sum` does not have to hold
/// two gradients of a large parameter.
void add_on_accelerator(const Tensor& sum, const Tensor& other) {
  if (other.device() == sum.device()) {
    accelerator::record_use(other);
    sum.add_(other);
    return;
  }
  constexpr int64_t kPieces = 16;
  const int64_t length =
      round_up((sum.numel() + kPieces - 1) / kPieces, optim::kBlockElements);
  for (int64_t at = 0; at < sum.numel(); at += length) {
    const int64_t count = std::min(length, sum.numel() - at);
    optim::memory_view(sum, at, count)
        .add_(to_device(optim::memory_view(other, at, count), place_of(sum)));
  }
}

/// Computes left += right for whole tensors, which may be on different devices.
void add_gradients(PartialSum& left, PartialSum& right) {
  torch::NoGradGuard no_grad;
  for (size_t p = 0; p < left.gradients.size(); ++p) {
    if (!right.gradients[p].defined()) continue;
    if (!left.gradients[p].defined()) {
      left.gradients[p] = std::move(right.gradients[p]);
      continue;
    }
    const Tensor sum = left.gradients[p].tensor();
    if (!sum.is_cpu()) {
      add_on_accelerator(sum, std::move(right.gradients[p]).release());
    } else {
      const Tensor other =
          to_device(std::move(right.gradients[p]).release(), place_of(sum));
      intra_op_for(sum.numel(), [&](int64_t begin, int64_t end) {
        const auto size = static_cast<int64_t>(sum.element_size());
        auto* out =
            static_cast<std::byte*>(sum.mutable_data_ptr()) + begin * size;
        const auto* in = static_cast<const std::byte*>(other.const_data_ptr()) +
                         begin * size;
        add_memory(out, out, in, end - begin, sum.scalar_type());
      });
    }
  }
  left.last = right.last;
}

}  // namespace

void append_partial(std::vector<PartialSum>& partials, PartialSum next,
                    int64_t shards) {
  partials.push_back(std::move(next));
  while (partials.size() >= 2) {
    PartialSum& left = partials[partials.size() - 2];
    PartialSum& right = partials.back();
    if (!is_tree_node(left.first, right.last, shards)) return;
    add_gradients(left, right);
    partials.pop_back();
  }
}

std::vector<PartialSum> join_partials(
    std::vector<std::vector<PartialSum>> per_worker) {
  std::vector<PartialSum> all;
  for (auto& worker_values : per_worker) {
    std::move(worker_values.begin(), worker_values.end(),
              std::back_inserter(all));
  }
  return all;
}

void merge_partials(std::vector<PartialSum>& partials) {
  while (partials.size() >= 2) {
    add_gradients(partials[partials.size() - 2], partials.back());
    partials.pop_back();
  }
}

OwnedGradient sum_over_shards(std::vector<OwnedGradient> per_shard) {
  const auto shards = static_cast<int64_t>(per_shard.size());
  std::vector<PartialSum> partials;
  for (int64_t s = 0; s < shards; ++s) {
    PartialSum next{.first = s, .last = s + 1, .gradients = {}};
    next.gradients.push_back(std::move(per_shard[static_cast<size_t>(s)]));
    append_partial(partials, std::move(next), shards);
  }
  if (partials.empty()) return {};
  return std::move(partials.front().gradients.front());
}

Reduction::Reduction(std::vector<PartialSum> partials, int64_t shards,
                     std::span<const Tensor> parameters)
    : partials_(std::move(partials)),
      has_gradient_(parameters.size()),
      is_narrow_(parameters.size()) {
  for (const Tensor& parameter : parameters) {
    types_.push_back(parameter.scalar_type());
  }
  for (const PartialSum& partial : partials_) {
    for (size_t p = 0; p < parameters.size(); ++p) {
      const Tensor& gradient = partial.gradients[p].tensor();
      if (!gradient.defined()) continue;
      has_gradient_[p] = true;
      is_narrow_[p] = is_narrow_[p] || gradient.scalar_type() != types_[p];
    }
  }
  std::vector<size_t> stack;
  for (size_t i = 0; i < partials_.size(); ++i) {
    stack.push_back(i);
    while (stack.size() >= 2) {
      const size_t right = stack[stack.size() - 1];
      const size_t left = stack[stack.size() - 2];
      if (!is_tree_node(partials_[left].first, partials_[right].last, shards)) {
        break;
      }
      partials_[left].last = partials_[right].last;
      merges_.emplace_back(left, right);
      stack.pop_back();
    }
  }
  if (parameters.empty()) return;
  if (parameters[0].is_cpu()) {
    if (has_special_links()) bring_together(parameters);
    return;
  }
  for (const auto& [left, right] : merges_) {
    add_gradients(partials_[left], partials_[right]);
  }
  merges_.clear();
  for (size_t p = 0; p < parameters.size(); ++p) {
    OwnedGradient& sum = partials_[0].gradients[p];
    if (!sum.defined()) continue;
    Tensor moved = to_device(std::move(sum).release(), place_of(parameters[p]));
    sum = OwnedGradient::take(std::move(moved), parameters[p]);
  }
}

void Reduction::bring_together(std::span<const Tensor> parameters) {
  torch::NoGradGuard no_grad;
  for (size_t i = 1; i < partials_.size(); ++i) {
    for (size_t p = 0; p < parameters.size(); ++p) {
      OwnedGradient& gradient = partials_[i].gradients[p];
      const OwnedGradient& first = partials_[0].gradients[p];
      if (!gradient.defined() || !first.defined()) continue;
      gradient = OwnedGradient::take(
          to_device(std::move(gradient).release(), place_of(first.tensor())),
          parameters[p]);
    }
  }
}

Tensor Reduction::block(const Block& block, Tensor& scratch) {
  const auto tensor = static_cast<size_t>(block.tensor);
  if (!has_gradient_[tensor]) return {};
  const at::ScalarType type = types_[tensor];
  if (is_narrow_[tensor] && !scratch.defined()) {
    Tensor sum =
        optim::memory_view(wide_sums_[tensor], block.offset, block.length);
    return this->block(block, sum);
  }
  struct Operand {
    std::byte* data = nullptr;
    at::ScalarType type = at::ScalarType::Undefined;
    const Tensor* gradient = nullptr;  // null: a sum in one of wide_sums
  };
  std::vector<Operand> operands;
  operands.reserve(partials_.size());
  for (const PartialSum& partial : partials_) {
    Operand& operand = operands.emplace_back();
    const Tensor& gradient = partial.gradients[tensor].tensor();
    if (!gradient.defined()) continue;
    operand = {
        .data = static_cast<std::byte*>(gradient.mutable_data_ptr()) +
                block.offset * static_cast<int64_t>(gradient.element_size()),
        .type = gradient.scalar_type(),
        .gradient = &gradient};
  }
  const auto scratch_data = [&] {
    if (scratch.scalar_type() != type) {
      scratch = torch::empty({optim::kBlockElements}, type);
    }
    return static_cast<std::byte*>(scratch.mutable_data_ptr());
  };
  std::vector<Tensor> wide_sums;
  for (size_t m = 0; m < merges_.size(); ++m) {
    Operand& left = operands[merges_[m].first];
    const Operand& right = operands[merges_[m].second];
    if (!right.data) continue;
    if (!left.data) {
      left = right;
      continue;
    }
    // The last sum is used at once and doesn't need to go back to memory.
    const bool is_last = m + 1 == merges_.size() && scratch.defined();
    Operand sum{.data = left.data, .type = type, .gradient = left.gradient};
    if (is_last) {
      sum.data = scratch_data();
    } else if (is_narrow_[tensor] && left.gradient) {
      // Several ranks may sum this block, so none may write to a gradient.
      wide_sums.push_back(torch::empty({block.length}, type));
      sum.data = static_cast<std::byte*>(wide_sums.back().mutable_data_ptr());
      sum.gradient = nullptr;
    }
    if (is_narrow_[tensor]) {
      add_narrow(reinterpret_cast<float*>(sum.data), left.data, left.type,
                 right.data, right.type, block.length);
    } else {
      add_memory(sum.data, left.data, right.data, block.length, type);
    }
    if (is_last) return scratch.narrow(0, 0, block.length);
    left = sum;
  }
  const Operand& sum = operands.front();
  if (sum.gradient && sum.type == type) {
    return optim::memory_view(*sum.gradient, block.offset, block.length);
  }
  widen(reinterpret_cast<const c10::BFloat16*>(sum.data),
        reinterpret_cast<float*>(scratch_data()), block.length);
  return scratch.narrow(0, 0, block.length);
}

void Reduction::prepare_take() {
  wide_sums_.resize(is_narrow_.size());
  for (size_t p = 0; p < is_narrow_.size(); ++p) {
    if (!is_narrow_[p]) continue;
    for (const PartialSum& partial : partials_) {
      const Tensor& gradient = partial.gradients[p].tensor();
      if (!gradient.defined()) continue;
      wide_sums_[p] = torch::empty_like(gradient, torch::dtype(types_[p]));
      break;
    }
  }
}

std::vector<Tensor> Reduction::take() {
  std::vector<Tensor> sums(has_gradient_.size());
  for (size_t p = 0; p < sums.size(); ++p) {
    if (!has_gradient_[p]) continue;
    if (is_narrow_[p]) {
      sums[p] = std::move(wide_sums_[p]);
      continue;
    }
    // If shard 0 had no gradient, the sum is in the first partial sum that had
    // one.
    for (PartialSum& partial : partials_) {
      if (!partial.gradients[p].defined()) continue;
      sums[p] = std::move(partial.gradients[p]).release();
      break;
    }
  }
  return sums;
}

}  // namespace lockstep
