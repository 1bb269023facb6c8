#include "lockstep/device/not_finite.h"

#include <fmt/format.h>
#include <torch/types.h>

#include "lockstep/base/format.h"

namespace lockstep {

std::string describe_not_finite(const std::string& name,
                                const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_floating_point()) return "";
  // This reads the tensor once and writes nothing. The slow check below runs
  // only if the sum overflows or an element is not finite.
  if (tensor.sum().isfinite().item<bool>()) return "";
  const auto bad = tensor.isfinite().logical_not();
  const auto count = bad.sum().item<int64_t>();
  if (count == 0) return "";
  const bool has_nan = tensor.isnan().any().item<bool>();
  return fmt::format("{} ({} in {} of {})", name, has_nan ? "nan" : "inf",
                     count, counted(tensor.numel(), "element"));
}

}  // namespace lockstep
