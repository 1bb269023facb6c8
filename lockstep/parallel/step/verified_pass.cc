#include "lockstep/parallel/step/verified_pass.h"

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/device/random.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/module/kept_tensors.h"

namespace lockstep {

using torch::Tensor;

namespace {

std::string digest_of(const ShardPass& pass, const Replica& replica) {
  const torch::NoGradGuard no_grad;
  Checksum sum;
  add_elements(sum, pass.loss);
  for (const OwnedGradient& gradient : pass.gradients.parameters) {
    add_elements(sum, gradient.tensor());
  }
  for (const Tensor& gradient : pass.gradients.inputs) {
    add_elements(sum, gradient);
  }
  for (const auto& [leaf, gradient] : pass.gradients.others) {
    add_elements(sum, gradient.tensor());
  }
  for (const auto& [name, buffer] : replica.module().buffers) {
    add_elements(sum, buffer);
  }
  return sum.hex();
}

}  // namespace

ShardPass verified_pass(Replica& replica,
                        const std::function<ShardPass()>& compute) {
  const KeptTensors before = kept_buffers(replica.module());
  const RandomState start = RandomState::from_thread();
  const auto once_more = [&] {
    before.restore();
    const RandomScope same_numbers(start);
    return compute();
  };
  const std::string first = digest_of(once_more(), replica);
  ShardPass pass = once_more();
  const std::string second = digest_of(pass, replica);
  if (second == first) return pass;

  pass = {};  // frees its gradients before the next pass computes others
  pass = once_more();
  pass.is_repaired = true;
  const std::string third = digest_of(pass, replica);
  if (third == first || third == second) return pass;
  throw TrainError(
      {.code = ErrorCode::kNotRepeatable,
       .what = "three computations of a shard's gradients, from the same "
               "weights and random numbers, gave three results",
       .expected = "a module and a loss that compute the same each time",
       .fix = "keep what they count in buffers, draw with LibTorch's operators "
              "alone, use kernels that add in a fixed order, or do not verify "
              "gradients"});
}

}  // namespace lockstep
