#include "lockstep/base/error.h"
#include "lockstep/device/cuda.h"

namespace lockstep::cuda {
namespace {

[[noreturn]] void not_built() {
  throw DeviceError(
      {.code = ErrorCode::kNotInBuild,
       .what = "this build has no CUDA support",
       .fix = "use devices such as 2xcpu, or build with a CUDA toolkit"});
}

}  // namespace

struct Fence {};

bool is_built() { return false; }
int device_count() { return 0; }
Properties properties(int) { not_built(); }
void fix_order_of_sums() { not_built(); }
void bind_thread(int) { not_built(); }
void synchronize() { not_built(); }
void wait_for_all(int) noexcept {}
MemoryStats memory_stats(int) { not_built(); }
void reset_peak_memory() { not_built(); }
at::Generator current_generator() { not_built(); }
bool copy_by_kernel(const at::Tensor&, const at::Tensor&) { not_built(); }
std::string uuid(int) { not_built(); }
int driver_version() { not_built(); }
std::shared_ptr<Fence> record_fence(int) { not_built(); }
void wait_fence(const std::shared_ptr<Fence>&) { not_built(); }

}  // namespace lockstep::cuda
