#include "lockstep/base/error.h"
#include "lockstep/comm/device_backends.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>&, int, int,
    std::chrono::milliseconds) {
  throw CommError({.code = ErrorCode::kNotInBuild,
                   .what = "the nccl backend is not in this build",
                   .expected = "a build with the CUDA toolkit",
                   .got = "one without",
                   .fix = "use the backend shm or tcp, or build with CUDA"});
}

}  // namespace lockstep
