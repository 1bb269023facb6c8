#include "lockstep/comm/collectives/call_of.h"

#include "lockstep/base/checksum.h"
#include "lockstep/base/env.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/tree_reduce.h"

namespace lockstep {
namespace {

uint64_t hash_of(at::IntArrayRef sizes) {
  Fnv1a hash;
  for (const int64_t size : sizes) hash.add_unit(static_cast<uint64_t>(size));
  return hash.value();
}

}  // namespace

bool is_debug_detail() {
  static const bool detailed = env("LOCKSTEP_DEBUG") == "detail";
  return detailed;
}

shm::Call call_of(shm::Operation operation, const at::Tensor& tensor, int root,
                  const c10d::ReduceOp* op) {
  shm::Call call{.operation = operation, .root = root};
  call.type = shm::short_text(c10::toString(tensor.scalar_type()));
  if (op != nullptr) call.reduction = shm::short_text(name_of(op->op_));
  call.elements = static_cast<uint64_t>(tensor.numel());
  if (is_debug_detail()) call.shape_hash = hash_of(tensor.sizes());
  return call;
}

double factor_of(const c10d::ReduceOp& op) {
  const auto* supplement =
      dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw CommError({.code = ErrorCode::kBadTensor,
                     .what = "premul_sum without a factor",
                     .fix = "make it with c10d::makeNCCLPreMulSum()"});
  }
  const at::Tensor& factor = supplement->tensor_factor;
  return factor.defined() ? factor.item<double>() : supplement->double_factor;
}

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  return tensor * at::Scalar(factor_of(op));
}

}  // namespace lockstep
