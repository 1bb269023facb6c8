#include "lockstep/comm/transport/transport.h"

#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {

void Transport::check_home() const {
  if (home_.is_this_process()) return;
  throw CommError(
      {.code = ErrorCode::kCollectiveFailed,
       .what = fmt::format("process {} uses the process group of rank {}, from "
                           "whose process it was forked",
                           ::getpid(), rank()),
       .expected = fmt::format("process {}", home_.pid()),
       .fix = "communicate only in the rank's process; or start the child "
              "without fork(), and let it make its own process group"});
}

}  // namespace lockstep
