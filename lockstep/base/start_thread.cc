#include "lockstep/base/start_thread.h"

#include <system_error>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

std::thread start_thread(const char* component, const std::string& purpose,
                         std::function<void()> task) {
  try {
    return std::thread(std::move(task));
  } catch (const std::system_error& error) {
    throw Error(component,
                {.code = ErrorCode::kOutOfResources,
                 .what = "can't start a thread for " + purpose,
                 .got = error.code().message(),
                 .fix = "raise the limit on threads (ulimit -u, the "
                        "container's pids limit) or on memory (ulimit -v), or "
                        "use fewer ranks, devices or workers"});
  }
}

}  // namespace lockstep
