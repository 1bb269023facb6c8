#include "lockstep/comm/call_checks.h"

#include <ATen/MemoryOverlap.h>
#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/comm/tree_reduce.h"

namespace lockstep {
namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  if (tensor.is_nested()) return "a nested tensor";
  return fmt::format("{} x {} on {}, {}", tensor.numel(),
                     c10::toString(tensor.scalar_type()),
                     c10::str(tensor.device()), c10::str(tensor.layout()));
}

}  // namespace

void CallChecks::refuse(ErrorCode code, const std::string& what,
                        const std::string& expected, const std::string& got,
                        const std::string& fix) const {
  throw InvalidArgument(
      "comm", {.code = code,
               .what = fmt::format("{} on rank {} of {}: {}", operation_, rank_,
                                   size_, what),
               .expected = expected,
               .got = got,
               .fix = fix});
}

void CallChecks::root(int64_t root, int64_t root_tensor) const {
  if (root < 0 || root >= size_) {
    refuse(ErrorCode::kBadRank, "invalid root rank",
           fmt::format("one from 0 to {}", size_ - 1), std::to_string(root));
  }
  if (root_tensor != 0) {
    refuse(ErrorCode::kBadOption, "invalid root tensor",
           "0: a rank has one device", std::to_string(root_tensor));
  }
}

void CallChecks::peer(int peer) const {
  if (peer >= 0 && peer < size_ && peer != rank_) return;
  refuse(ErrorCode::kBadRank,
         peer == rank_ ? "a rank can't send to or receive from itself"
                       : "there is no such rank",
         fmt::format("another rank from 0 to {}", size_ - 1),
         std::to_string(peer));
}

void CallChecks::tag(int tag) const {
  if (tag >= 0) return;
  refuse(ErrorCode::kBadOption, "a message can't have this tag",
         "one of at least 0", std::to_string(tag));
}

void CallChecks::memory(const at::Tensor& tensor) const {
  if (!device_type_ && tensor.defined()) return;
  if (tensor.defined() && tensor.device().type() == device_type_ &&
      tensor.layout() == torch::kStrided && !tensor.is_quantized() &&
      !tensor.is_nested() && !tensor._is_zerotensor()) {
    return;
  }
  refuse(ErrorCode::kBadTensor, "this tensor can't be used",
         fmt::format("a dense tensor{}",
                     device_type_
                         ? " on " + c10::DeviceTypeName(*device_type_, true)
                         : std::string()),
         describe(tensor),
         "for tensors on GPUs call "
         "init(ProcessGroupOptions().device_type(torch::kCUDA)); make sparse "
         "and quantized tensors dense (all_reduce takes sparse ones, too)");
}

void CallChecks::input(const at::Tensor& tensor) const { memory(tensor); }

void CallChecks::output(const at::Tensor& tensor) const {
  memory(tensor);
  if (!device_type_ ||
      at::has_internal_overlap(tensor) != at::MemOverlap::Yes) {
    return;
  }
  refuse(ErrorCode::kBadTensor, "several elements of a result share memory",
         "a tensor that is not expanded",
         fmt::format("sizes {}, strides {}", c10::str(tensor.sizes()),
                     c10::str(tensor.strides())),
         "pass a clone()");
}

void CallChecks::inputs(const Tensors& tensors) const {
  for (const auto& tensor : tensors) input(tensor);
}

void CallChecks::outputs(const Tensors& tensors) const {
  for (const auto& tensor : tensors) output(tensor);
}

void CallChecks::parts(const Tensors& parts, const at::Tensor& like) const {
  same_count("one tensor for each rank", static_cast<size_t>(size_),
             parts.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    const at::Tensor& part = parts[r];
    if (part.defined() && part.numel() == like.numel() &&
        part.scalar_type() == like.scalar_type()) {
      continue;
    }
    refuse(ErrorCode::kBadTensor,
           fmt::format("the tensor for rank {} does not fit the others", r),
           describe(like), describe(part),
           "give one tensor for each rank, all of one size and type");
  }
}

void CallChecks::whole(const at::Tensor& whole, const at::Tensor& part) const {
  same_type(whole, part);
  if (whole.numel() == part.numel() * size_) return;
  refuse(ErrorCode::kBadTensor,
         "the tensor of all ranks does not fit that of one",
         fmt::format("{} times {}", size_, counted(part.numel(), "element")),
         counted(whole.numel(), "element"));
}

void CallChecks::coalesced(const Tensors& tensors) const {
  if (tensors.empty())
    refuse(ErrorCode::kBadTensor, "an empty list", "at least one tensor",
           "none");
  for (const auto& tensor : tensors) same_type(tensor, tensors[0]);
}

void CallChecks::same_type(const at::Tensor& tensor,
                           const at::Tensor& other) const {
  if (tensor.defined() && other.defined() &&
      tensor.scalar_type() == other.scalar_type() &&
      tensor.device() == other.device() && tensor.layout() == other.layout()) {
    return;
  }
  refuse(ErrorCode::kBadTensor,
         "tensors must all have the same type, device and layout",
         describe(other), describe(tensor));
}

void CallChecks::same_size(const at::Tensor& output,
                           const at::Tensor& input) const {
  if (output.numel() == input.numel()) return;
  refuse(ErrorCode::kBadTensor, "a rank's message to itself does not fit",
         describe(output), describe(input));
}

void CallChecks::same_count(const char* what, size_t expected,
                            size_t count) const {
  if (count == expected) return;
  refuse(ErrorCode::kBadTensor, fmt::format("needs {}", what),
         std::to_string(expected), std::to_string(count));
}

void CallChecks::reduction(const at::Tensor& tensor,
                           const c10d::ReduceOp& op) const {
  if (device_type_ == torch::kCPU) tree_reduction(tensor.scalar_type(), op.op_);
}

void CallChecks::splits(const at::Tensor& tensor,
                        const std::vector<int64_t>& splits) const {
  const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : -1;
  if (splits.empty()) {
    if (rows >= 0 && rows % size_ == 0) return;
    refuse(ErrorCode::kBadOption, "can't cut a tensor evenly for the ranks",
           fmt::format("a first dimension that {} divides", size_),
           fmt::format("sizes {}", c10::str(tensor.sizes())));
  }
  int64_t sum = 0;
  bool is_good = rows >= 0 && splits.size() == static_cast<size_t>(size_);
  for (const int64_t split : splits) {
    // Each size is compared with the remaining rows, because the sum of huge
    // sizes could overflow.
    is_good = is_good && split >= 0 && split <= rows - sum;
    if (is_good) sum += split;
  }
  if (is_good && sum == rows) return;
  refuse(ErrorCode::kBadOption, "the split sizes don't add up",
         fmt::format("{} sizes of at least 0, {} together", size_, rows),
         c10::str(splits));
}

const CallChecks::Tensors& CallChecks::only_at_root(
    const std::vector<Tensors>& lists, int64_t root) const {
  if (rank_ == root) return only(lists);
  static const Tensors kNoTensors;
  // c10d's front end passes no list. A list with one empty list is also
  // accepted.
  if (lists.empty() || (lists.size() == 1 && lists[0].empty())) {
    return kNoTensors;
  }
  refuse(ErrorCode::kBadTensor, "only root has a list of tensors",
         "an empty list", fmt::format("one of {}", lists[0].size()),
         fmt::format("pass it on rank {} alone", root));
}

}  // namespace lockstep
