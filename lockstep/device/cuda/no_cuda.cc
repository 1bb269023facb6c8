#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda.h"

namespace lockstep::cuda {
namespace {

[[noreturn]] void not_built() {
  throw DeviceError(
      {.code = ErrorCode::kNotInBuild,
       .what = "this build has no CUDA support",
       .fix = "use devices such as 2xcpu, or build with a CUDA toolkit"});
}

}  // namespace

bool is_built() { return false; }
Properties properties(int) { not_built(); }
void fix_order_of_sums() { not_built(); }
bool copy_by_kernel(const at::Tensor&, const at::Tensor&) { not_built(); }
std::string uuid(int) { not_built(); }
int driver_version() { not_built(); }

}  // namespace lockstep::cuda
