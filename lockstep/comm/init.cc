#include <map>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "lockstep/base/error.h"
#include "lockstep/comm/launchers.h"
#include "lockstep/comm/process_group_impl.h"
#include "lockstep/control/worker_side.h"

namespace lockstep {
namespace {

// Returns the number of earlier calls of init() in this run. All ranks count
// the same, so the number is used as the group's name. A process that continues
// with the next attempt starts again at 0, like the processes that are started
// for it.
int next_group_number(const std::string& run_id) {
  static std::mutex mutex;
  static std::map<std::string, int> groups;
  const std::lock_guard lock(mutex);
  return groups[run_id]++;
}

}  // namespace

ProcessGroup init(const ProcessGroupOptions& options) {
  const Environment environment = read_environment();
  if (environment.world_size == 1) return ProcessGroup();
  auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("lockstep/world {} of {}",
                  next_group_number(environment.run_id), environment.run_id),
      connect_store(environment, options.timeout()));
  return ProcessGroup(std::make_shared<const ProcessGroup::Impl>(
      std::move(store), environment.rank, environment.world_size,
      environment.master_addr, options));
}

std::optional<ProcessGroup> init_next(const ProcessGroupOptions& options,
                                      const std::string& why,
                                      const std::function<bool()>& stop) {
  std::string reason = why;
  while (const auto assignment = control::wait_for_next(reason, stop)) {
    set_assignment(*assignment);
    try {
      return init(options);
    } catch (const CommError& error) {
      reason = text_of(error);  // another rank was lost immediately
    }
  }
  return std::nullopt;
}

}  // namespace lockstep
