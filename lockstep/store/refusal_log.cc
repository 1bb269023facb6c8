#include "lockstep/store/refusal_log.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/base/terminal.h"

namespace lockstep::store {

void RefusalLog::add(const std::string& peer, const std::string& why) {
  constexpr std::chrono::seconds kEvery{10};
  const auto now = std::chrono::steady_clock::now();
  if (last_.time_since_epoch().count() != 0 && now - last_ < kEvery) {
    ++untold_;
    return;
  }
  const std::string others =
      untold_ == 0
          ? ""
          : fmt::format(" ({} before)",
                        counted(static_cast<int64_t>(untold_), "other"));
  log_warning("comm", fmt::format("the job's store refused {}: {}{}", peer, why,
                                  others));
  last_ = now;
  untold_ = 0;
}

}  // namespace lockstep::store
