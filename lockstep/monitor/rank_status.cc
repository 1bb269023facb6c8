#include "lockstep/monitor/rank_status.h"

#include <array>
#include <chrono>
#include <cmath>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/host_identity.h"
#include "lockstep/base/json.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/process.h"

namespace lockstep::monitor {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<const char*, 5> kActivities{
    "starting", "training", "evaluating", "saving", "ended"};
// Limits that no rank exceeds. A file beyond them was not written by a rank.
constexpr size_t kMaxDevices = 256;
constexpr size_t kMaxPoints = 4096;
constexpr size_t kMaxText = 256;

// Returns `value`, or 0 if it is not finite, because JSON has no infinity.
double finite(double value) { return std::isfinite(value) ? value : 0; }

Json fraction_json(const std::optional<double>& fraction) {
  return fraction ? Json(finite(*fraction)) : Json(nullptr);
}

/// Reads values of an object, and checks that each has the expected type.
class Reader {
 public:
  explicit Reader(const Json& json) : json_(json) {
    if (!json.is_object()) fail("an object");
  }

  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(key);
    // The text will be shown in a terminal.
    return printable_line(value.get_ref<const std::string&>(), kMaxText);
  }
  double number(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number()) fail(key);
    return finite(value.get<double>());
  }
  int64_t integer(const char* key) const {
    const Json& value = at(key);
    if (!value.is_number_integer()) fail(key);
    return value.get<int64_t>();
  }
  std::optional<double> fraction(const char* key) const {
    if (at(key).is_null()) return std::nullopt;
    return number(key);
  }
  const Json& list(const char* key, size_t most) const {
    const Json& value = at(key);
    if (!value.is_array() || value.size() > most) fail(key);
    return value;
  }

  [[noreturn]] static void fail(const std::string& what) {
    throw IoError({.code = ErrorCode::kMalformedData,
                   .what = "this is no status of a rank",
                   .expected = what});
  }

 private:
  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end()) fail(key);
    return *found;
  }

  const Json& json_;
};

Activity activity_named(const std::string& name) {
  for (size_t i = 0; i < kActivities.size(); ++i) {
    if (name == kActivities[i]) return static_cast<Activity>(i);
  }
  Reader::fail("an activity");
}

}  // namespace

const char* to_string(Activity activity) {
  return kActivities[static_cast<size_t>(activity)];
}

std::string to_json(const RankStatus& status) {
  Json devices = Json::array();
  for (const DeviceStatus& device : status.devices) {
    devices.push_back({{"name", device.name},
                       {"busy_fraction", finite(device.busy_fraction)},
                       {"memory_bytes", device.memory_bytes},
                       {"memory_peak_bytes", device.memory_peak_bytes}});
  }
  Json losses = Json::array();
  for (const LossPoint& point : status.losses) {
    losses.push_back(Json::array({point.step, finite(point.loss)}));
  }
  const Json json = {
      {"host", status.host},
      {"machine", status.machine},
      {"pid", status.pid},
      {"process_start", status.process_start},
      {"rank", status.rank},
      {"world_size", status.world_size},
      {"model", status.model},
      {"strategy", status.strategy},
      {"backend", status.backend},
      {"activity", to_string(status.activity)},
      {"step", status.step},
      {"total_steps", status.total_steps},
      {"epoch", status.epoch},
      {"step_s", finite(status.step_s)},
      {"samples_per_s", finite(status.samples_per_s)},
      {"wait_fraction", fraction_json(status.wait_fraction)},
      {"communication_fraction", fraction_json(status.communication_fraction)},
      {"devices", std::move(devices)},
      {"restarts", status.restarts},
      {"started_at", finite(status.started_at)},
      {"updated_at", finite(status.updated_at)},
      {"losses", std::move(losses)},
  };
  // A name that is not UTF-8 must not end a run.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

RankStatus rank_status_from_json(std::string_view text) {
  const Json json = try_parse_json<Json>(text);
  if (json.is_discarded()) Reader::fail("JSON");
  const Reader in(json);
  RankStatus status;
  status.host = in.text("host");
  status.machine = in.text("machine");
  status.pid = in.integer("pid");
  status.process_start = in.text("process_start");
  status.rank = in.integer("rank");
  status.world_size = in.integer("world_size");
  status.model = in.text("model");
  status.strategy = in.text("strategy");
  status.backend = in.text("backend");
  status.activity = activity_named(in.text("activity"));
  status.step = in.integer("step");
  status.total_steps = in.integer("total_steps");
  status.epoch = in.integer("epoch");
  status.step_s = in.number("step_s");
  status.samples_per_s = in.number("samples_per_s");
  status.wait_fraction = in.fraction("wait_fraction");
  status.communication_fraction = in.fraction("communication_fraction");
  for (const Json& each : in.list("devices", kMaxDevices)) {
    const Reader device(each);
    status.devices.push_back(
        {.name = device.text("name"),
         .busy_fraction = device.number("busy_fraction"),
         .memory_bytes = device.integer("memory_bytes"),
         .memory_peak_bytes = device.integer("memory_peak_bytes")});
  }
  status.restarts = in.integer("restarts");
  status.started_at = in.number("started_at");
  status.updated_at = in.number("updated_at");
  for (const Json& point : in.list("losses", kMaxPoints)) {
    if (!point.is_array() || point.size() != 2 ||
        !point[0].is_number_integer() || !point[1].is_number()) {
      Reader::fail("losses");
    }
    status.losses.push_back({.step = point[0].get<int64_t>(),
                             .loss = finite(point[1].get<double>())});
  }
  return status;
}

double now_s() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string machine() {
  static const std::string own = boot_id() + " " + namespace_id("pid");
  return own;
}

std::string process_start(int64_t pid) {
  // proc(5): field 22. process_stat() starts with the third field.
  std::istringstream fields(process_stat(static_cast<pid_t>(pid)));
  std::string field;
  if (!(fields >> field) || field == "Z" || field == "X") return "";
  for (int i = 4; i <= 22; ++i) {
    if (!(fields >> field)) return "";
  }
  return field;
}

}  // namespace lockstep::monitor
