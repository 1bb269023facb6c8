#include "lockstep/tools/top/job.h"

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/printable.h"
#include "lockstep/monitor/job_folder.h"

namespace lockstep::monitor {
namespace {

constexpr size_t kMaxName = 256;  // bytes
constexpr std::array<const char*, 5> kNotes{"", "slow", "stale", "lost",
                                            "ended"};

/// Returns how long the busiest device of a rank computes in a step.
double compute_s(const RankStatus& status) {
  double longest = 0;
  for (const DeviceStatus& device : status.devices) {
    longest = std::max(longest, device.busy_fraction * status.step_s);
  }
  return longest;
}

/// Returns the median of `sorted` without one `value` that is in it, or 0 if
/// nothing is left.
double median_without(const std::vector<double>& sorted, double value) {
  if (sorted.size() < 2) return 0;
  const auto own = static_cast<size_t>(
      std::lower_bound(sorted.begin(), sorted.end(), value) - sorted.begin());
  const auto other = [&](size_t i) { return sorted[i < own ? i : i + 1]; };
  const size_t others = sorted.size() - 1;
  return (other((others - 1) / 2) + other(others / 2)) / 2;
}

RankNote note_of(const RankStatus& status, double others_compute_s,
                 double now) {
  if (is_lost(status).value_or(false)) return RankNote::kLost;
  if (status.activity == Activity::kEnded) return RankNote::kEnded;
  const double silent_s = now - status.updated_at;
  if (silent_s > std::max(10.0, 5 * status.step_s)) return RankNote::kStale;
  const bool is_slow = status.activity == Activity::kTraining &&
                       others_compute_s > 0 &&
                       compute_s(status) > kSlowFactor * others_compute_s;
  return is_slow ? RankNote::kSlow : RankNote::kNone;
}

/// Returns `text` as the value of a label. Only \, " and newlines are escaped.
std::string label_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

template <class T>
std::optional<double> as_number(const T& value) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<double>(value);
  } else {
    return value;
  }
}

using Samples = std::vector<std::pair<std::string, double>>;

void add_metric(std::string& out, const char* name, const char* type,
                const char* help, const Samples& samples) {
  if (samples.empty()) return;
  out += fmt::format("# HELP lockstep_{} {}\n# TYPE lockstep_{} {}\n", name,
                     help, name, type);
  for (const auto& [labels, value] : samples) {
    out += fmt::format("lockstep_{}{{{}}} {}\n", name, labels, value);
  }
}

}  // namespace

const char* to_string(RankNote note) {
  return kNotes[static_cast<size_t>(note)];
}

std::optional<double> Job::seconds_left() const {
  const RankStatus& status = first();
  if (status.step_s <= 0 || status.total_steps < status.step) {
    return std::nullopt;
  }
  return static_cast<double>(status.total_steps - status.step) * status.step_s;
}

Job make_job(std::string name, std::string folder,
             std::vector<RankStatus> ranks, double now) {
  Job job{.name = printable_line(name, kMaxName),
          .folder = std::move(folder),
          .ranks = std::move(ranks),
          .notes = {},
          .now = now};
  std::vector<double> sorted_s;
  for (const RankStatus& status : job.ranks) {
    sorted_s.push_back(compute_s(status));
  }
  std::sort(sorted_s.begin(), sorted_s.end());
  for (const RankStatus& status : job.ranks) {
    job.notes.push_back(
        note_of(status, median_without(sorted_s, compute_s(status)), now));
  }
  return job;
}

Job read_job(const std::string& name, const std::string& folder) {
  auto statuses = read_statuses(folder);
  if (statuses.empty()) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = fmt::format("no rank has written to {}", folder),
                   .expected = "the folder of a run that has begun",
                   .fix = "`lockstep top` without a folder shows what runs on "
                          "this host"});
  }
  return make_job(name, folder, std::move(statuses), now_s());
}

std::vector<Job> local_jobs() {
  std::vector<Job> jobs;
  for (const std::string& name : list_jobs()) {
    try {
      jobs.push_back(read_job(name, jobs_folder() + "/" + name));
    } catch (const IoError&) {
      // The job is starting, or has ended since it was listed.
    }
  }
  return jobs;
}

std::string jobs_json(const std::vector<Job>& jobs) {
  using Json = nlohmann::ordered_json;
  Json list = Json::array();
  for (const Job& job : jobs) {
    Json ranks = Json::array();
    for (size_t r = 0; r < job.ranks.size(); ++r) {
      Json rank = parse_json<Json>(to_json(job.ranks[r]));
      rank["note"] = to_string(job.notes[r]);
      ranks.push_back(std::move(rank));
    }
    const auto left = job.seconds_left();
    list.push_back({{"name", job.name},
                    {"folder", job.folder},
                    {"seconds_left", left ? Json(*left) : Json(nullptr)},
                    {"ranks", std::move(ranks)}});
  }
  // A folder's name may contain anything, and the text may be shown in a
  // terminal.
  return Json({{"jobs", std::move(list)}})
      .dump(2, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

std::string jobs_metrics(const std::vector<Job>& jobs) {
  std::string out;
  const auto add_rank_metric = [&](const char* name, const char* type,
                                   const char* help, const auto& value) {
    Samples samples;
    for (const Job& job : jobs) {
      for (size_t r = 0; r < job.ranks.size(); ++r) {
        const RankStatus& status = job.ranks[r];
        const auto found = as_number(value(status, job.notes[r]));
        if (!found) continue;
        samples.emplace_back(fmt::format("job=\"{}\",model=\"{}\",rank=\"{}\"",
                                         label_text(job.name),
                                         label_text(status.model), status.rank),
                             *found);
      }
    }
    add_metric(out, name, type, help, samples);
  };
  const auto add_status_metric = [&](const char* name, const char* type,
                                     const char* help, const auto member) {
    add_rank_metric(name, type, help, [&](const RankStatus& status, RankNote) {
      return status.*member;
    });
  };
  const auto add_device_metric = [&](const char* name, const char* help,
                                     const auto member) {
    Samples samples;
    for (const Job& job : jobs) {
      for (const RankStatus& status : job.ranks) {
        for (const DeviceStatus& device : status.devices) {
          samples.emplace_back(
              fmt::format("job=\"{}\",rank=\"{}\",device=\"{}\"",
                          label_text(job.name), status.rank,
                          label_text(device.name)),
              *as_number(device.*member));
        }
      }
    }
    add_metric(out, name, "gauge", help, samples);
  };
  add_status_metric("steps_total", "counter", "Finished steps.",
                    &RankStatus::step);
  add_status_metric("steps_planned", "gauge", "Steps of the whole run.",
                    &RankStatus::total_steps);
  add_status_metric("step_seconds", "gauge", "Mean time of the last steps.",
                    &RankStatus::step_s);
  add_status_metric("samples_per_second", "gauge",
                    "Samples per second of all ranks.",
                    &RankStatus::samples_per_s);
  add_status_metric("wait_ratio", "gauge",
                    "Share of the time spent waiting for ranks or data.",
                    &RankStatus::wait_fraction);
  add_status_metric(
      "communication_ratio", "gauge",
      "Share of the time spent on communication that no computation hides.",
      &RankStatus::communication_fraction);
  add_status_metric("restarts_total", "counter", "Attempts after the first.",
                    &RankStatus::restarts);
  add_rank_metric("slow", "gauge", "1 if the other ranks wait for this one.",
                  [](const RankStatus&, RankNote note) {
                    return note == RankNote::kSlow ? 1.0 : 0.0;
                  });
  add_rank_metric("up", "gauge", "1 if the rank's process is running.",
                  [](const RankStatus&, RankNote note) {
                    const bool is_gone =
                        note == RankNote::kLost || note == RankNote::kEnded;
                    return is_gone ? 0.0 : 1.0;
                  });
  add_status_metric("updated_timestamp_seconds", "gauge",
                    "Time of the rank's report, in seconds since 1970.",
                    &RankStatus::updated_at);
  add_rank_metric("loss", "gauge", "Loss of the last step.",
                  [](const RankStatus& status, RankNote) {
                    return status.losses.empty()
                               ? std::nullopt
                               : std::optional(status.losses.back().loss);
                  });
  add_device_metric("device_busy_ratio",
                    "Share of the time in which the device computes.",
                    &DeviceStatus::busy_fraction);
  add_device_metric("device_memory_bytes", "Bytes of tensors.",
                    &DeviceStatus::memory_bytes);
  add_device_metric("device_memory_peak_bytes", "Peak bytes of tensors.",
                    &DeviceStatus::memory_peak_bytes);
  return out;
}

}  // namespace lockstep::monitor
