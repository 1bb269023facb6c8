#include "lockstep/train/report/run_records.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"

namespace lockstep::train {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_records(const std::string& what,
                                 const std::string& got = "") {
  throw IoError({.code = ErrorCode::kMalformedData,
                 .what = "a run report's " + what,
                 .expected = "what `lockstep train` wrote",
                 .got = got});
}

// Checks that there are `count` values and that none of them is below 0.
template <class T>
void check_values(const std::vector<T>& values, size_t count,
                  const char* name) {
  if (values.size() != count) {
    refuse_records(
        std::string(name) + " have another number of values than of steps",
        std::to_string(values.size()));
  }
  if (std::any_of(values.begin(), values.end(), [](T v) { return v < 0; })) {
    refuse_records(std::string(name) + " have a value below 0");
  }
}

void check_steps(const std::vector<int64_t>& steps, const char* name) {
  check_values(steps, steps.size(), name);
  if (!std::is_sorted(steps.begin(), steps.end())) {
    refuse_records(std::string(name) + " are not in the order of steps");
  }
}

void check_devices(const std::vector<std::vector<int64_t>>& devices,
                   size_t count) {
  for (const auto& values : devices)
    check_values(values, count, "memory points");
}

}  // namespace

nlohmann::ordered_json to_json(const StepTimeHistory& history) {
  return {{"steps", history.steps}, {"seconds", history.seconds}};
}

nlohmann::ordered_json to_json(const MemoryHistory& history) {
  return {{"steps", history.steps},
          {"seconds", history.seconds},
          {"held_bytes", history.held_bytes},
          {"peak_bytes", history.peak_bytes},
          {"shared_bytes", history.shared_bytes}};
}

StepTimeHistory step_times_from_json(const json& object) {
  StepTimeHistory history;
  try {
    object.at("steps").get_to(history.steps);
    object.at("seconds").get_to(history.seconds);
  } catch (const json::exception& error) {
    refuse_records("step times can't be read", lockstep::text_of(error));
  }
  check_steps(history.steps, "step times");
  check_values(history.seconds, history.steps.size(), "step times");
  return history;
}

MemoryHistory memory_history_from_json(const json& object) {
  MemoryHistory history;
  try {
    object.at("steps").get_to(history.steps);
    object.at("seconds").get_to(history.seconds);
    object.at("held_bytes").get_to(history.held_bytes);
    object.at("peak_bytes").get_to(history.peak_bytes);
    object.at("shared_bytes").get_to(history.shared_bytes);
  } catch (const json::exception& error) {
    refuse_records("memory can't be read", lockstep::text_of(error));
  }
  check_steps(history.steps, "memory points");
  const size_t count = history.steps.size();
  check_values(history.seconds, count, "memory points");
  check_devices(history.held_bytes, count);
  check_devices(history.peak_bytes, count);
  if (history.peak_bytes.size() != history.held_bytes.size()) {
    refuse_records("memory has peaks of another number of devices");
  }
  if (!history.shared_bytes.empty()) {
    check_values(history.shared_bytes, count, "memory points");
  }
  return history;
}

}  // namespace lockstep::train
