#include "lockstep/tools/measurement/matrix_replay.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <torch/types.h>
#include <torch/utils.h>

namespace lockstep {
namespace {

using torch::Tensor;

/// Tensors of one type in one storage have this in common.
using StorageKey = std::pair<const void*, c10::ScalarType>;

/// Returns one more than the index of the last element in the storage.
int64_t end_of(const TensorLayout& layout) {
  int64_t last = layout.offset;
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    if (layout.sizes[d] == 0) return layout.offset;
    last += (layout.sizes[d] - 1) * layout.strides[d];
  }
  return last + 1;
}

/// Returns the bytes of the tensor's elements. Elements that an expanded
/// dimension repeats count once.
double bytes_of(const Tensor& tensor) {
  double elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.stride(d) != 0) {
      elements *= static_cast<double>(tensor.size(d));
    }
  }
  return tensor.numel() == 0
             ? 0
             : elements * static_cast<double>(tensor.element_size());
}

double bytes_of(const std::vector<c10::IValue>& values) {
  double bytes = 0;
  for (const c10::IValue& value : values) {
    if (value.isTensor() && value.toTensor().defined()) {
      bytes += bytes_of(value.toTensor());
    }
  }
  return bytes;
}

double elements_of(const Tensor& tensor) {
  return static_cast<double>(tensor.numel());
}

/// Returns the operations of a convolution with `outputs` elements in its
/// output, or in its input if it is transposed.
double convolution_flops(const Tensor& outputs, const Tensor& weight) {
  if (weight.numel() == 0) return 0;
  return 2 * elements_of(outputs) * elements_of(weight) /
         static_cast<double>(weight.size(0));
}

/// Returns the operations of one product of attention, such as the scores.
double attention_product_flops(const Tensor& query, const Tensor& key) {
  return 2 * elements_of(query) * static_cast<double>(key.size(2));
}

double flops_of(const std::string& name,
                const std::vector<c10::IValue>& arguments,
                const std::vector<c10::IValue>& results) {
  const auto tensor = [&](size_t i) { return arguments.at(i).toTensor(); };
  const auto product = [&](size_t left) {
    return 2 * elements_of(results.at(0).toTensor()) *
           static_cast<double>(tensor(left).size(-1));
  };
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::mv" ||
      name == "aten::linear" || name == "aten::mkldnn_linear") {
    return product(0);
  }
  if (name == "aten::addmm" || name == "aten::_addmm_activation" ||
      name == "aten::baddbmm" || name == "aten::addmv") {
    return product(1);
  }
  if (name == "aten::addbmm") {
    return product(1) * static_cast<double>(tensor(1).size(0));
  }
  if (name == "aten::convolution" || name == "aten::convolution_overrideable") {
    constexpr size_t kTransposed = 6;
    const bool is_transposed = arguments.at(kTransposed).toBool();
    return convolution_flops(
        is_transposed ? tensor(0) : results.at(0).toTensor(), tensor(1));
  }
  if (name == "aten::mkldnn_convolution") {
    return convolution_flops(results.at(0).toTensor(), tensor(1));
  }
  if (name == "aten::convolution_backward") {
    constexpr size_t kTransposed = 7;
    constexpr size_t kMask = 10;
    const bool is_transposed = arguments.at(kTransposed).toBool();
    const auto mask = arguments.at(kMask).toBoolList();
    const double gradients = (mask.get(0) ? 1 : 0) + (mask.get(1) ? 1 : 0);
    return gradients *
           convolution_flops(tensor(is_transposed ? 1 : 0), tensor(2));
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") {
    return 2 * attention_product_flops(tensor(0), tensor(1));
  }
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward") {
    // The scores again, and the gradients of values, scores, queries and keys.
    return 5 * attention_product_flops(tensor(1), tensor(2));
  }
  return 0;
}

}  // namespace

MatrixReplay::MatrixReplay(const std::vector<MatrixCall>& calls) {
  const torch::NoGradGuard no_grad;
  std::map<StorageKey, int64_t> sizes;
  for (const MatrixCall& call : calls) {
    for (const auto& [index, layout] : call.tensors) {
      int64_t& size = sizes[{layout.storage, layout.type}];
      size = std::max(size, end_of(layout));
    }
  }
  std::map<StorageKey, Tensor> storages;
  for (const auto& [key, size] : sizes) {
    // Small values, so that no sum overflows and none is denormal.
    constexpr double kValue = 0.01;
    const Tensor made = torch::full({size}, kValue, key.second);
    storage_bytes_ += static_cast<int64_t>(made.nbytes());
    storages.emplace(key, made);
  }
  for (const MatrixCall& call : calls) {
    Call ready{.op = c10::Dispatcher::singleton().findSchemaOrThrow(
                   call.name.name.c_str(), call.name.overload_name.c_str()),
               .arguments = call.arguments};
    for (const auto& [index, layout] : call.tensors) {
      ready.arguments.at(index) =
          storages.at({layout.storage, layout.type})
              .as_strided(layout.sizes, layout.strides, layout.offset);
    }
    calls_.push_back(std::move(ready));
  }
}

void MatrixReplay::run() const {
  const torch::NoGradGuard no_grad;
  std::vector<c10::IValue> stack;
  for (const Call& call : calls_) {
    stack = call.arguments;
    call.op.callBoxed(stack);
  }
}

MatrixWork MatrixReplay::count() const {
  const torch::NoGradGuard no_grad;
  MatrixWork work;
  std::vector<c10::IValue> results;
  for (const Call& call : calls_) {
    results = call.arguments;
    call.op.callBoxed(results);
    ++work.calls;
    work.flops +=
        flops_of(call.op.operator_name().name, call.arguments, results);
    work.bytes += bytes_of(call.arguments) + bytes_of(results);
  }
  return work;
}

}  // namespace lockstep
