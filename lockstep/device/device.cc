#include "lockstep/device/device.h"

#include <algorithm>
#include <optional>
#include <set>

#include <ATen/DeviceAccelerator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/text.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/cuda/cuda.h"
#include "lockstep/device/memory.h"

namespace lockstep {
namespace {

constexpr std::string_view kForms =
    "auto or all, a count (2, 2xcpu or 2xcuda), cpu, cuda, or a list like "
    "cuda:0,cuda:1 or cpu:0,cpu:1";

std::optional<int> to_int(std::string_view text) {
  const auto value = parse_number<int>(text);
  return value && *value >= 0 ? value : std::nullopt;
}

int core_count() { return static_cast<int>(allowed_cores().size()); }

std::string range(std::string_view kind, int count) {
  return count == 1 ? fmt::format("{}:0", kind)
                    : fmt::format("{0}:0..{0}:{1}", kind, count - 1);
}

std::string name_of(c10::DeviceType type) {
  return c10::DeviceTypeName(type, /*lower_case=*/true);
}

/// Returns "this machine has cpu:0..cpu:1 (2 cores) and no GPU".
std::string inventory() {
  const int cores = core_count();
  std::string text = fmt::format("this machine has {} ({}) and ",
                                 range("cpu", cores), counted(cores, "core"));
  if (const auto type = accelerator::available()) {
    const int count = accelerator::device_count(*type);
    text += fmt::format("{} ({})", range(name_of(*type), count),
                        counted(count, *type == c10::kCUDA ? "GPU" : "device"));
  } else {
    text += cuda::is_built() ? "no GPU" : "no GPU (a build without CUDA)";
  }
  return text;
}

/// Throws DeviceError, which says what this machine has.
[[noreturn]] void no_such_device(const std::string& what,
                                 const std::string& expected = "",
                                 const std::string& got = "") {
  throw DeviceError({.code = ErrorCode::kNoSuchDevice,
                     .what = what,
                     .expected = expected,
                     .got = got,
                     .fix = inventory()});
}

[[noreturn]] void unknown_device(std::string_view name) {
  no_such_device(fmt::format("unknown device '{}'", name), std::string(kForms));
}

void check_slice_count(int count, std::string_view asked,
                       Oversubscription oversubscription) {
  if (count < 1) {
    throw DeviceError({.code = ErrorCode::kNoSuchDevice,
                       .what = fmt::format("'{}' asks for no device", asked),
                       .expected = "at least 1",
                       .fix = "write cpu for the whole host; " + inventory()});
  }
  if (count > kMaxSlices) {
    no_such_device(fmt::format("'{}' is too many slices", asked),
                   fmt::format("at most {}", kMaxSlices));
  }
  if (count > core_count() && oversubscription == Oversubscription::kRefuse) {
    throw DeviceError(
        {.code = ErrorCode::kNoSuchDevice,
         .what = fmt::format("'{}' asks for more slices than cores", asked),
         .expected = fmt::format("at most {}", core_count()),
         .got = std::to_string(count),
         .fix = inventory() +
                "; ask for fewer, or allow that slices share cores: "
                "--oversubscribe, Oversubscription::kAllow"});
  }
}

std::vector<Device> host_slices(int count, std::string_view asked,
                                Oversubscription oversubscription) {
  check_slice_count(count, asked, oversubscription);
  std::vector<Device> slices;
  for (int i = 0; i < count; ++i) {
    slices.push_back({c10::kCPU, i, count});
  }
  return slices;
}

std::vector<Device> accelerators(c10::DeviceType type, int count,
                                 std::string_view asked) {
  const int existing = accelerator::device_count(type);
  const std::string kind =
      type == c10::kCUDA ? "GPU" : name_of(type) + " device";
  if (existing == 0) no_such_device(fmt::format("no {} for '{}'", kind, asked));
  if (count < 1 || count > existing) {
    no_such_device(
        fmt::format("'{}' asks for {}s that don't exist", asked, kind),
        fmt::format("1 to {}", existing), std::to_string(count));
  }
  std::vector<Device> found;
  for (int i = 0; i < count; ++i) found.push_back({type, i, 0});
  return found;
}

/// A count and the type of device that it counts, if `asked` names one.
struct Count {
  int number = 0;
  std::optional<c10::DeviceType> type;
};

/// Parses "2", "2xcpu" or "2xcuda". Returns nullopt if `asked` is no count.
std::optional<Count> parse_count(std::string_view asked) {
  const auto times = asked.find('x');
  const auto number = to_int(asked.substr(0, times));
  if (!number) return std::nullopt;
  if (times == std::string_view::npos) return Count{*number, std::nullopt};
  const auto type = parse_device_type(asked.substr(times + 1));
  return type ? std::optional(Count{*number, type}) : std::nullopt;
}

Device parse_name(std::string_view name) {
  const auto colon = name.find(':');
  if (colon == std::string_view::npos) unknown_device(name);
  const auto index = to_int(name.substr(colon + 1));
  const auto type = parse_device_type(name.substr(0, colon));
  if (!index || !type) unknown_device(name);
  return {*type, *index, 0};
}

void check_kinds(const std::vector<Device>& list) {
  const auto other = std::find_if(list.begin(), list.end(), [&](auto& device) {
    return device.type != list.front().type;
  });
  if (other != list.end()) {
    throw DeviceError(
        {.code = ErrorCode::kMixedDevices,
         .what = "devices of two kinds in one list",
         .expected = "all cpu or all cuda",
         .got = fmt::format("{} and {}", list.front().name(), other->name())});
  }
}

void check_twice(const std::vector<Device>& list) {
  std::set<Device> seen;
  for (const Device& device : list) {
    if (!seen.insert(device).second) {
      throw DeviceError(
          {.code = ErrorCode::kBadOption,
           .what = fmt::format("{} is named twice", device.name()),
           .expected = "each device once",
           .got = join_names(list),
           .fix = "allow duplicates (Duplicates::kAllow) if that is meant; " +
                  inventory()});
    }
  }
}

void check_exists(const Device& device) {
  if (device.index >= accelerator::device_count(device.type)) {
    no_such_device(fmt::format("no device {}", device.name()));
  }
}

/// Refuses a slice that is named without the other slices. Such a name was once
/// a count, so it must not become another device silently.
void check_not_alone(const std::vector<Device>& list, std::string_view asked) {
  const int index = list.front().index;
  if (list.size() > 1 || index == 0) return;
  const std::string count = index == 1
                                ? "cpu for the whole host"
                                : fmt::format("{0}xcpu for {0} slices", index);
  throw DeviceError(
      {.code = ErrorCode::kNoSuchDevice,
       .what = fmt::format("'{}' names one slice and not the others", asked),
       .expected = "a count of slices, or the names of all",
       .fix = fmt::format("write {}, or list the names, such as cpu:0,cpu:1",
                          count)});
}

/// Sets the number of slices in a list to the number of different slices that
/// are named. In cpu:0,cpu:2 the slice cpu:1 is missing, so the number of
/// slices would be a guess.
void number_slices(std::vector<Device>& list, std::string_view asked,
                   Oversubscription oversubscription) {
  const std::set<Device> named(list.begin(), list.end());
  const int count = static_cast<int>(named.size());
  check_slice_count(count, asked, oversubscription);
  for (Device& device : list) {
    if (device.index >= count) {
      no_such_device(
          fmt::format("no device {} in '{}'", device.name(), asked),
          fmt::format("{}, as {} {} named", range("cpu", count),
                      counted(count, "slice"), count == 1 ? "is" : "are"));
    }
    device.slices = count;
  }
}

std::vector<Device> parse_list(std::string_view list, Duplicates duplicates,
                               Oversubscription oversubscription) {
  std::vector<Device> parsed;
  for (std::string_view rest = list;;) {
    const auto comma = rest.find(',');
    parsed.push_back(parse_name(trimmed(rest.substr(0, comma))));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  check_kinds(parsed);
  if (duplicates == Duplicates::kRefuse) check_twice(parsed);
  if (parsed.front().is_cpu()) {
    check_not_alone(parsed, list);
    number_slices(parsed, list, oversubscription);
  } else {
    std::for_each(parsed.begin(), parsed.end(), check_exists);
  }
  return parsed;
}

}  // namespace

std::string Device::name() const {
  return fmt::format("{}:{}", name_of(type), index);
}

std::optional<c10::DeviceType> parse_device_type(std::string_view name) {
  try {
    const c10::Device device{std::string(name)};
    const bool is_known = device.is_cpu() || at::isAccelerator(device.type());
    if (is_known && !device.has_index()) return device.type();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

std::vector<Device> devices(std::string_view list, Duplicates duplicates,
                            Oversubscription oversubscription) {
  const std::string_view asked = trimmed(list);
  const auto best = accelerator::available().value_or(c10::kCPU);
  const auto first = [&](int count, c10::DeviceType type) {
    return type == c10::kCPU ? host_slices(count, asked, oversubscription)
                             : accelerators(type, count, asked);
  };
  if (asked == "all" || asked == "auto") {
    return first(best == c10::kCPU ? std::min(core_count(), kMaxSlices)
                                   : accelerator::device_count(best),
                 best);
  }
  if (const auto type = parse_device_type(asked)) {
    return first(*type == c10::kCPU ? 1 : accelerator::device_count(*type),
                 *type);
  }
  if (const auto count = parse_count(asked)) {
    return first(count->number, count->type.value_or(best));
  }
  return parse_list(asked, duplicates, oversubscription);
}

std::vector<int> cores_of(const Device& device) {
  if (!device.is_cpu()) {
    throw DeviceError({.code = ErrorCode::kNoSuchDevice,
                       .what = device.name() + " has no cores of the host",
                       .expected = "a slice, such as cpu:0"});
  }
  if (device.slices < 1 || device.index < 0 || device.index >= device.slices) {
    throw DeviceError(
        {.code = ErrorCode::kNoSuchDevice,
         .what = fmt::format("no device {} in a host of {}", device.name(),
                             counted(device.slices, "slice"))});
  }
  // Slices are equal, so that no shard computes with more threads than another.
  return core_share(allowed_cores(), static_cast<size_t>(device.index),
                    static_cast<size_t>(device.slices));
}

int threads_of_shard(const std::vector<Device>& devices, int64_t shards,
                     int64_t ranks, int64_t local_ranks) {
  const int64_t cores =
      static_cast<int64_t>(allowed_cores().size()) * ranks / local_ranks;
  int64_t threads = std::max<int64_t>(cores / shards, 1);
  for (const Device& device : devices) {
    const auto cores_of_slice = static_cast<int64_t>(cores_of(device).size());
    threads = std::min(threads, std::max<int64_t>(cores_of_slice, 1));
  }
  return static_cast<int>(threads);
}

std::string join_names(const std::vector<Device>& devices) {
  std::string names;
  for (const Device& device : devices) {
    if (!names.empty()) names += ", ";
    names += device.name();
  }
  return names;
}

int cuda_device_count() { return accelerator::device_count(c10::kCUDA); }

c10::Device torch_device(const Device& device) {
  if (device.is_cpu()) return c10::kCPU;
  return {device.type, static_cast<c10::DeviceIndex>(device.index)};
}

}  // namespace lockstep
