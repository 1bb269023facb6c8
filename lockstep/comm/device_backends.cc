#include "lockstep/comm/device_backends.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

const std::vector<std::string> kHostBackends = {"auto", "shm", "tcp"};

struct Registry {
  std::mutex mutex;
  std::vector<DeviceBackend> backends = {
      {"nccl", c10::kCUDA, make_nccl_backend}};
};

Registry& registry() {
  static Registry registry;
  return registry;
}

template <class Predicate>
std::optional<DeviceBackend> find(const Predicate& predicate) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found =
      std::find_if(all.backends.begin(), all.backends.end(), predicate);
  if (found == all.backends.end()) return std::nullopt;
  return *found;
}

}  // namespace

void add_device_backend(DeviceBackend backend) {
  const std::string type = c10::DeviceTypeName(backend.device_type, true);
  const auto names = backend_names();
  std::string got;
  if (std::find(names.begin(), names.end(), backend.name) != names.end() ||
      backend.name.empty()) {
    got = fmt::format("the name '{}'", backend.name);
  } else if (backend.device_type == c10::kCPU) {
    got = "a backend for the CPU";
  } else if (const auto other = device_backend(backend.device_type)) {
    got = fmt::format("a second one for {}, besides {}", type, other->name);
  }
  if (got.empty()) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    all.backends.push_back(std::move(backend));
    return;
  }
  throw InvalidArgument(
      "comm", {.code = ErrorCode::kMisuse,
               .what = "this backend can't be registered",
               .expected = fmt::format("a name other than {}, for a device "
                                       "type that has no backend yet",
                                       fmt::join(names, ", ")),
               .got = got});
}

std::optional<DeviceBackend> device_backend(const std::string& name) {
  return find([&](const DeviceBackend& one) { return one.name == name; });
}

std::optional<DeviceBackend> device_backend(c10::DeviceType device_type) {
  return find(
      [&](const DeviceBackend& one) { return one.device_type == device_type; });
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names = kHostBackends;
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  for (const auto& backend : all.backends) names.push_back(backend.name);
  return names;
}

}  // namespace lockstep
