#include "lockstep/tools/comparison/machine_load.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>
#include <sys/resource.h>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

// A load below this share of the cores is normal for any machine: the kernel's
// own threads, and the error of counting in ticks.
constexpr double kBusyShare = 0.05;
// Less CPU time than this may be noise.
constexpr double kMinSeconds = 0.2;

std::string content_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_usec) * 1e-6;
}

double used_by(int who) {
  rusage usage{};
  ::getrusage(who, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

double per_second(double value, double seconds) {
  return seconds > 0 ? value / seconds : 0;
}

}  // namespace

CoreTimes core_times(const std::string& proc_stat,
                     const std::vector<int>& cores, double ticks_per_s) {
  CoreTimes times;
  std::istringstream lines(proc_stat);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (!name.starts_with("cpu") || name == "cpu") continue;
    const bool is_ours = std::ranges::any_of(
        cores, [&](int core) { return name == "cpu" + std::to_string(core); });
    // `user` and `nice` already include the time of guests. Older kernels have
    // no `steal` field.
    double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0,
           softirq = 0, steal = 0;
    if (!is_ours || !(fields >> user >> nice >> system >> idle)) continue;
    fields >> iowait >> irq >> softirq >> steal;
    ++times.cores;
    times.busy_s += (user + nice + system + irq + softirq) / ticks_per_s;
    times.stolen_s += steal / ticks_per_s;
  }
  return times;
}

std::optional<double> waiting_seconds(const std::string& pressure) {
  std::istringstream lines(pressure);
  for (std::string line; std::getline(lines, line);) {
    const std::string key = "total=";
    const size_t at = line.find(key);
    if (!line.starts_with("some ") || at == std::string::npos) continue;
    std::istringstream field(line.substr(at + key.size()));
    double microseconds = 0;
    if (field >> microseconds) return microseconds * 1e-6;
  }
  return std::nullopt;
}

double MachineLoad::other_cores() const { return per_second(other_s, seconds); }

double MachineLoad::stolen_cores() const {
  return per_second(stolen_s, seconds);
}

bool MachineLoad::is_busy() const {
  const double taken_s = other_s + stolen_s;
  return taken_s > kMinSeconds && taken_s > kBusyShare * cores * seconds;
}

MachineLoad& MachineLoad::operator+=(const MachineLoad& later) {
  cores = std::max(cores, later.cores);
  if (seconds == 0) {
    waiting_s = later.waiting_s;
  } else if (waiting_s && later.waiting_s) {
    *waiting_s += *later.waiting_s;
  } else {
    waiting_s.reset();
  }
  seconds += later.seconds;
  other_s += later.other_s;
  stolen_s += later.stolen_s;
  return *this;
}

MachineLoad load_between(const CoreTimes& before, const CoreTimes& after,
                         double seconds, double own_s) {
  // The tick counts and the kernel's exact count of our own time differ
  // slightly.
  return {.cores = after.cores,
          .seconds = seconds,
          .other_s = std::max(0.0, after.busy_s - before.busy_s - own_s),
          .stolen_s = std::max(0.0, after.stolen_s - before.stolen_s),
          .waiting_s = std::nullopt};
}

LoadWatch::LoadWatch() : begin_(read()) {}

LoadWatch::Reading LoadWatch::read() {
  return {.times = core_times(content_of("/proc/stat"), allowed_cores(),
                              static_cast<double>(::sysconf(_SC_CLK_TCK))),
          .own_s = used_by(RUSAGE_SELF) + used_by(RUSAGE_CHILDREN),
          .waiting_s = waiting_seconds(content_of("/proc/pressure/cpu"))};
}

std::optional<MachineLoad> LoadWatch::load() const {
  const Reading end = read();
  const double seconds = watch_.seconds();
  if (begin_.times.cores == 0 || end.times.cores != begin_.times.cores) {
    return std::nullopt;
  }
  MachineLoad load =
      load_between(begin_.times, end.times, seconds, end.own_s - begin_.own_s);
  if (begin_.waiting_s && end.waiting_s) {
    load.waiting_s = *end.waiting_s - *begin_.waiting_s;
  }
  return load;
}

std::string busy_text(const std::vector<MachineLoad>& round_loads) {
  MachineLoad all;
  size_t worst = 0;
  for (size_t round = 0; round < round_loads.size(); ++round) {
    all += round_loads[round];
    const auto taken = [&](size_t r) {
      return round_loads[r].other_cores() + round_loads[r].stolen_cores();
    };
    if (taken(round) > taken(worst)) worst = round;
  }
  if (!all.is_busy()) return "";
  std::string text = fmt::format("Other processes used {:.1f} of {}",
                                 all.other_cores(), counted(all.cores, "core"));
  if (all.stolen_cores() >= 0.05) {
    text +=
        fmt::format(", and other virtual machines {:.1f},", all.stolen_cores());
  }
  text += " while this was measured";
  if (round_loads.size() > 1) {
    text += fmt::format(
        " (most in round {}: {:.1f})", worst + 1,
        round_loads[worst].other_cores() + round_loads[worst].stolen_cores());
  }
  if (all.waiting_s) {
    text += fmt::format("; some process waited for a core {:.0f} % of the time",
                        100 * per_second(*all.waiting_s, all.seconds));
  }
  return text +
         ". The step times are those of a busy machine: measure again when it "
         "is idle.";
}

}  // namespace lockstep::tools
