#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/output.h"
#include "lockstep/base/table.h"
#include "lockstep/base/version.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/config_file.h"
#include "lockstep/cli/start/print.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/simulate/failures.h"
#include "lockstep/simulate/run_profile.h"
#include "lockstep/simulate/step.h"

namespace lockstep::cli {
namespace {

using simulate::Failures;
using simulate::StepTime;
using simulate::Training;

constexpr int64_t kMaxRanks = 10'000;
constexpr int kRepeats = 100;           // of a training, for its mean time
constexpr double kLongTraining = 1000;  // failures, if there is no --total

struct SimulateFlags {
  std::vector<int64_t> ranks{8, 16, 32, 64, 128, 256};
  // The profile. What is not given comes from --run.
  std::string run;
  std::optional<double> compute_ms, bytes, samples, checkpoint_s;
  std::string unit;
  int64_t buckets = 1;
  double overlap = 0;
  std::optional<double> variation;
  double slow_share = 0, slow_factor = 1;
  // The network.
  std::string algorithm = "auto";
  int64_t ranks_per_host = 8, cores_per_host = 0, hosts_per_switch = 0;
  double cache_kib = 0, memory_gb_s = 0, message_us = 0, oversubscription = 1;
  double host_latency_us = 0, host_gb_s = 0, latency_us = 0, gb_s = 0;
  std::vector<std::string> bus;
  // Failures.
  double per_node_day = 0, detection_s = 0, recovery_s = 0;
  std::string interval = "optimum";
  double total = 0;
  uint64_t seed = 1;
  std::string report;
};

/// The simulation that the flags and the run describe.
struct Inputs {
  simulate::Profile profile;
  simulate::Network network;
  Failures failures;
  bool uses_optimum = false;
  std::string unit = "samples";
};

struct Prediction {
  StepTime step;
  Failures failures;  ///< with the interval of this number of ranks
  double optimum_s = 0;
  double expected_ratio = 0;
  Training training;
  std::optional<double> time_s;  ///< of the whole training, with --total
};

std::map<int64_t, double> parse_bus(const std::vector<std::string>& words) {
  std::map<int64_t, double> table;
  for (const auto& word : words) {
    const size_t colon = std::min(word.find(':'), word.size());
    const auto hosts = parse_number<int64_t>(word.substr(0, colon));
    const auto gb_s =
        parse_number<double>(word.substr(std::min(colon + 1, word.size())));
    const bool is_valid = hosts && gb_s && *hosts > 0 && *gb_s > 0 &&
                          std::isfinite(*gb_s) && !table.contains(*hosts);
    if (!is_valid) {
      throw BadUsage(fmt::format(
          "[usage] --bus-bandwidth: expected HOSTS:GB/s with numbers above 0 "
          "and each number of hosts once, got '{}'; try 1:436,2:362",
          word));
    }
    table[*hosts] = *gb_s * 1e9;
  }
  return table;
}

/// Returns the seconds of --checkpoint-interval, or nullopt for the optimum.
std::optional<double> parse_interval(const SimulateFlags& flags) {
  if (flags.interval == "optimum") return std::nullopt;
  const auto seconds = parse_number<double>(flags.interval);
  if (seconds && std::isfinite(*seconds) && *seconds > 0) return seconds;
  throw BadUsage(fmt::format(
      "[usage] --checkpoint-interval: expected seconds above 0, or optimum, "
      "got '{}'",
      flags.interval));
}

void require_known(const std::optional<double>& value, const char* what,
                   const char* option, const std::string& run) {
  if (value || !run.empty()) return;
  throw BadUsage(fmt::format(
      "[usage] {} is not known; add {}, or --run with a report of `lockstep "
      "train --report`",
      what, option));
}

Inputs to_inputs(const SimulateFlags& flags) {
  if (flags.overlap > 1) {
    throw BadUsage(
        fmt::format("[usage] --overlap: expected a share from 0 to 1, got {}",
                    flags.overlap));
  }
  require_known(flags.compute_ms, "the time of the computation",
                "--compute-ms MS", flags.run);
  require_known(flags.bytes, "the size of the gradients", "--bytes N",
                flags.run);
  simulate::RunProfile run;
  if (!flags.run.empty()) run = simulate::read_run_profile(flags.run);
  Inputs inputs{.profile = run.profile, .network = {}, .failures = {}};
  auto& profile = inputs.profile;
  if (flags.compute_ms) profile.compute_s = *flags.compute_ms / 1e3;
  profile.gradient_bytes = flags.bytes.value_or(profile.gradient_bytes);
  profile.samples = flags.samples.value_or(profile.samples);
  profile.buckets = flags.buckets;
  profile.overlap = flags.overlap;
  if (flags.variation) {
    profile.stragglers.variation = *flags.variation;
    profile.stragglers.measured.clear();
  }
  profile.stragglers.slow_share = flags.slow_share;
  profile.stragglers.slow_factor = flags.slow_factor;
  if (run.has_tokens) inputs.unit = "tokens";
  if (!flags.unit.empty()) inputs.unit = flags.unit;

  using simulate::Algorithm;
  const std::map<std::string, Algorithm> algorithms{{"auto", Algorithm::kAuto},
                                                    {"tcp", Algorithm::kTcp},
                                                    {"ring", Algorithm::kRing}};
  inputs.network = {.algorithm = algorithms.at(flags.algorithm),
                    .ranks_per_host = flags.ranks_per_host,
                    .cores_per_host = flags.cores_per_host,
                    .cache_bytes = flags.cache_kib * 1024,
                    .memory_bytes_per_s = flags.memory_gb_s * 1e9,
                    .message_s = flags.message_us / 1e6,
                    .host = {.latency_s = flags.host_latency_us / 1e6,
                             .bytes_per_s = flags.host_gb_s * 1e9},
                    .between = {.latency_s = flags.latency_us / 1e6,
                                .bytes_per_s = flags.gb_s * 1e9},
                    .bus_by_hosts = parse_bus(flags.bus),
                    .hosts_per_switch = flags.hosts_per_switch,
                    .oversubscription = flags.oversubscription};
  const auto interval = parse_interval(flags);
  inputs.failures = {
      .per_node_day = flags.per_node_day,
      .detection_s = flags.detection_s,
      .recovery_s = flags.recovery_s,
      .checkpoint_s = flags.checkpoint_s.value_or(run.checkpoint_s),
      .interval_s = interval.value_or(0)};
  inputs.uses_optimum = !interval;
  if (flags.per_node_day > 0 && !interval &&
      inputs.failures.checkpoint_s == 0) {
    throw BadUsage(
        "[usage] there is no best interval between checkpoints that take no "
        "time; add --checkpoint-s S, or --checkpoint-interval S");
  }
  return inputs;
}

Prediction predict(const Inputs& inputs, const SimulateFlags& flags,
                   int64_t ranks) {
  Prediction row{.step = simulate::simulate_step(inputs.profile, inputs.network,
                                                 ranks, flags.seed),
                 .failures = inputs.failures};
  const double rate =
      row.step.samples_per_s_of_rank * static_cast<double>(ranks);
  if (flags.total > 0) row.time_s = flags.total / rate;
  if (flags.per_node_day == 0) return row;
  const int64_t nodes = row.step.hosts;
  row.optimum_s = simulate::best_interval_s(row.failures, nodes);
  if (inputs.uses_optimum) row.failures.interval_s = row.optimum_s;
  row.expected_ratio = simulate::expected_ratio(row.failures, nodes);
  const double work_s = row.time_s.value_or(
      kLongTraining * simulate::mean_between_failures_s(row.failures, nodes));
  row.training = simulate::simulate_training(
      row.failures, nodes, work_s, flags.total > 0 ? kRepeats : 1, flags.seed);
  if (row.time_s) row.time_s = row.training.time_s;
  return row;
}

std::string in_days(double seconds) {
  return std::isfinite(seconds)
             ? fmt::format("{:.2f}", seconds / simulate::kDay)
             : "never";
}

void print_steps(const std::vector<Prediction>& rows, const Inputs& inputs,
                 bool has_time) {
  std::vector<std::string> header{"ranks",
                                  "compute",
                                  "exposed",
                                  "waiting",
                                  "step ms",
                                  "efficiency",
                                  inputs.unit + "/s/rank"};
  if (has_time) header.emplace_back("days");
  Table table(header);
  table.align(std::vector<Align>(header.size(), Align::kRight));
  for (const auto& [step, failures, optimum, expected, training, time] : rows) {
    std::vector<std::string> cells{
        std::to_string(step.ranks),
        fmt::format("{:.2f}", step.compute_s * 1e3),
        fmt::format("{:.2f}", step.exposed_s * 1e3),
        fmt::format("{:.2f}", step.waiting_s * 1e3),
        fmt::format("{:.2f}", step.step_s * 1e3),
        fmt::format("{:.1f} %", step.efficiency * 100),
        fmt::format("{:.1f}", step.samples_per_s_of_rank)};
    if (has_time) cells.push_back(in_days(*time));
    table.add_row(cells);
  }
  print_in_terminal(table);
}

void print_failures(const std::vector<Prediction>& rows, bool has_total) {
  std::vector<std::string> header{"ranks",      "per day",  "interval s",
                                  "Young/Daly", "training", "formula"};
  if (has_total) {
    header.emplace_back("failures");
    header.emplace_back("days");
  }
  Table table(header);
  table.align(std::vector<Align>(header.size(), Align::kRight));
  for (const auto& row : rows) {
    const double mean_s =
        simulate::mean_between_failures_s(row.failures, row.step.hosts);
    std::vector<std::string> cells{
        std::to_string(row.step.ranks),
        fmt::format("{:.3f}", simulate::kDay / mean_s),
        fmt::format("{:.0f}", row.failures.interval_s),
        fmt::format("{:.0f}", row.optimum_s),
        fmt::format("{:.1f} %", row.training.ratio * 100),
        fmt::format("{:.1f} %", row.expected_ratio * 100)};
    if (has_total) {
      cells.push_back(fmt::format("{:.1f}", row.training.failures));
      cells.push_back(in_days(*row.time_s));
    }
    table.add_row(cells);
  }
  print_in_terminal(table);
}

nlohmann::ordered_json to_json(const Prediction& row,
                               const SimulateFlags& flags) {
  using Json = nlohmann::ordered_json;
  const StepTime& step = row.step;
  Json object = {{"ranks", step.ranks},
                 {"hosts", step.hosts},
                 {"compute_s", step.compute_s},
                 {"communication_s", step.communication_s},
                 {"exposed_communication_s", step.exposed_s},
                 {"waiting_s", step.waiting_s},
                 {"step_s", step.step_s},
                 {"efficiency", step.efficiency},
                 {"samples_per_s_of_rank", step.samples_per_s_of_rank}};
  if (flags.per_node_day > 0) {
    object["checkpoint_interval_s"] = row.failures.interval_s;
    object["young_daly_s"] = row.optimum_s;
    object["training_time_ratio"] = row.training.ratio;
    object["expected_training_time_ratio"] = row.expected_ratio;
    if (row.time_s) object["failures"] = row.training.failures;
  }
  if (row.time_s) {
    // Null: the training makes no progress.
    object["time_to_train_s"] =
        std::isfinite(*row.time_s) ? Json(*row.time_s) : Json();
  }
  return object;
}

void run(const SimulateFlags& flags, const std::string& options) {
  const Inputs inputs = to_inputs(flags);
  if (!flags.report.empty()) const AtomicFile writable(flags.report);
  std::vector<Prediction> rows;
  for (const int64_t ranks : flags.ranks) {
    rows.push_back(predict(inputs, flags, ranks));
  }
  const bool has_failures = flags.per_node_day > 0;
  print_paragraph(
      "Times of a step in ms. Exposed: communication that the computation "
      "does not hide. Waiting: for the slowest rank.");
  print_steps(rows, inputs, flags.total > 0 && !has_failures);
  if (has_failures) {
    print_paragraph(
        "\nFailures per day. Young/Daly: the best interval between "
        "checkpoints, seconds. Training: its share of the time, simulated, and "
        "by the formula of expected values.");
    print_failures(rows, flags.total > 0);
  }
  if (flags.report.empty()) return;
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const auto& row : rows) results.push_back(to_json(row, flags));
  const nlohmann::ordered_json report = {
      {"lockstep", kVersion},
      {"options", parse_json<nlohmann::ordered_json>(options)},
      {"unit", inputs.unit},
      {"results", results}};
  write_atomically(flags.report, report.dump(2) + "\n");
}

void add_profile_options(CLI::App& app, SimulateFlags& flags) {
  const std::string group = "Profile of a rank";
  add_path(app, "--run", flags.run,
           "take the profile from this report of `lockstep train --report`, "
           "of a run on one device",
           "FILE")
      ->group(group);
  add_number(app, "--compute-ms", flags.compute_ms,
             "mean time in which a rank computes its part of a step, ms")
      ->default_str("from --run")
      ->check(number(0, Bound::kExcluded))
      ->group(group);
  add_number(app, "--bytes", flags.bytes, "bytes of the gradients")
      ->default_str("from --run")
      ->check(number(0))
      ->group(group);
  add_count(app, "--buckets", flags.buckets, {1, 100'000},
            "all-reduces that the gradients are divided into")
      ->group(group);
  add_number(app, "--overlap", flags.overlap,
             "share of the computation during which gradients are exchanged, "
             "0 to 1")
      ->check(number(0))
      ->group(group);
  add_number(app, "--samples-per-rank", flags.samples,
             "samples (or tokens) of a rank in a step")
      ->default_str("from --run, or 1")
      ->check(number(0, Bound::kExcluded))
      ->group(group);
  add_choice(app, "--unit", flags.unit, {"samples", "tokens"},
             "what is counted: samples or tokens")
      ->default_str("from --run, or samples")
      ->group(group);
  add_number(app, "--variation", flags.variation,
             "variation of a rank's time: standard deviation divided by the "
             "mean, log-normal")
      ->default_str("the times of --run, or 0")
      ->check(number(0))
      ->group(group);
  add_number(app, "--slow-share", flags.slow_share,
             "share of the ranks that are slow in a step")
      ->check(number(0, Bound::kIncluded, 1))
      ->group(group);
  add_number(app, "--slow-factor", flags.slow_factor,
             "how many times as long a slow rank takes")
      ->check(number(1))
      ->group(group);
}

void add_network_options(CLI::App& app, SimulateFlags& flags) {
  const std::string group = "Network";
  add_choice(app, "--algorithm", flags.algorithm, {"auto", "tcp", "ring"},
             "auto (as Lockstep: shm on one host, tcp between hosts), tcp "
             "(always) or ring (as NCCL)")
      ->group(group);
  add_count(app, "--ranks-per-host", flags.ranks_per_host, {1, kMaxRanks},
            "ranks of a host")
      ->group(group);
  add_count(app, "--cores-per-host", flags.cores_per_host, {0, kMaxRanks},
            "cores that these ranks share; 0: each has its own core or GPU")
      ->group(group);
  add_number(app, "--message-us", flags.message_us,
             "work of a rank for each message or word that it reads, us")
      ->check(number(0))
      ->group(group);
  add_number(app, "--host-latency-us", flags.host_latency_us,
             "latency within a host, us")
      ->check(number(0))
      ->group(group);
  add_number(app, "--host-bandwidth", flags.host_gb_s,
             "bandwidth of a rank within a host, GB/s")
      ->default_str("none")
      ->check(number(0, Bound::kExcluded))
      ->group(group);
  add_number(app, "--cache-kib", flags.cache_kib,
             "KiB of a message that a core's caches hold; 0: all of it")
      ->check(number(0))
      ->group(group);
  add_number(app, "--memory-bandwidth", flags.memory_gb_s,
             "bandwidth of a rank beyond the caches, GB/s")
      ->default_str("none")
      ->check(number(0, Bound::kExcluded))
      ->group(group);
  add_number(app, "--latency-us", flags.latency_us, "latency between hosts, us")
      ->check(number(0))
      ->group(group);
  add_number(app, "--bandwidth", flags.gb_s,
             "bandwidth of a host to others, GB/s in one direction")
      ->default_str("none")
      ->check(number(0, Bound::kExcluded))
      ->group(group);
  app.add_option("--bus-bandwidth", flags.bus,
                 "measured bus bandwidth by hosts, instead of both "
                 "bandwidths, GB/s (--bus-bandwidth 1:436,2:362)")
      ->type_name("N:X,N:X")
      ->delimiter(',')
      ->default_str("none")
      ->group(group);
  add_count(app, "--hosts-per-switch", flags.hosts_per_switch, {0, kMaxRanks},
            "hosts that share a switch; 0: all")
      ->group(group);
  add_number(app, "--oversubscription", flags.oversubscription,
             "bandwidth of a switch's hosts divided by that of its uplinks")
      ->check(number(1))
      ->group(group);
}

void add_failure_options(CLI::App& app, SimulateFlags& flags) {
  const std::string group = "Failures";
  add_number(app, "--failures-per-node-day", flags.per_node_day,
             "failures of a host in a day; 0: none")
      ->check(number(0))
      ->group(group);
  add_number(app, "--detection-s", flags.detection_s,
             "time until a failure is noticed, seconds")
      ->check(number(0))
      ->group(group);
  add_number(app, "--recovery-s", flags.recovery_s,
             "time from there to the next step, seconds")
      ->check(number(0))
      ->group(group);
  add_number(app, "--checkpoint-s", flags.checkpoint_s,
             "time that steps wait for a checkpoint, seconds")
      ->default_str("from --run, or 0")
      ->check(number(0))
      ->group(group);
  app.add_option("--checkpoint-interval", flags.interval,
                 "training between two checkpoints, seconds; optimum: that of "
                 "Young and Daly")
      ->type_name("S")
      ->group(group);
  add_number(app, "--total", flags.total,
             "samples (or tokens) of the whole training, for its time; 0: none")
      ->check(number(0))
      ->group(group);
}

}  // namespace

void add_simulate(CLI::App& app) {
  auto* command = add_command(
      app, "simulate", "Predict step time and time to train on a cluster");
  auto flags = std::make_shared<SimulateFlags>();
  command->add_option("--ranks", flags->ranks, "numbers of ranks")
      ->type_name("N,N")
      ->delimiter(',')
      ->default_str("8,16,32,64,128,256")
      ->check(whole_number(1, kMaxRanks));
  add_profile_options(*command, *flags);
  add_network_options(*command, *flags);
  add_failure_options(*command, *flags);
  add_count(*command, "--seed", flags->seed, {0},
            "seed of stragglers and failures");
  add_path(*command, "--report", flags->report,
           "also write the figures here (--report simulated.json)");
  add_config_option(*command);
  command->footer(
      "Every rank computes as much at any number of ranks. GB/s are 10^9 bytes "
      "per second.\n\n"
      "Example:\n"
      "  lockstep simulate --compute-ms 200 --bytes 2.5e9 --buckets 20 \\\n"
      "      --overlap 0.6 --algorithm ring --host-bandwidth 400 \\\n"
      "      --bandwidth 50 --variation 0.02 --ranks 8,64,512");
  command->callback([flags, command] { run(*flags, config_of(*command)); });
}

}  // namespace lockstep::cli
