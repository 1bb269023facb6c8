#include "lockstep/base/error.h"
#include "lockstep/comm/backends/backends.h"

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendOptions&) {
  throw CommError({.code = ErrorCode::kNotInBuild,
                   .what = "the nccl backend is not in this build",
                   .expected = "a build with the CUDA toolkit",
                   .got = "one without",
                   .fix = "use --backend shm or gloo, or build with CUDA"});
}

}  // namespace lockstep
