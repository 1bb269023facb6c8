#include "lockstep/cli/embed/run_task.h"

#include <csignal>
#include <cstdio>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/log.h"
#include "lockstep/base/output.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/config_file.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/comm/device_backends.h"
#include "lockstep/comm/environment.h"
#include "lockstep/launch/options/option_values.h"
#include "lockstep/train/option_table.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::cli {
namespace {

using training::Strategy;
using training::TrainOptions;

// Returns the devices that were named, else those of the program's defaults,
// else all.
std::vector<Device> devices_of(const RunFlags& flags) {
  const bool is_open = flags.devices.devices.empty();
  return is_open && !flags.options.devices().empty()
             ? flags.options.devices()
             : to_devices(flags.devices, "all");
}

// Returns the strategy that was named, else that of the program's defaults,
// else the one that uses all ranks and devices.
Strategy strategy_of(const RunFlags& flags) {
  const bool has_ranks = read_environment().world_size > 1;
  const bool has_default = flags.options.strategy() != Strategy::kSingle;
  if (is_given(*flags.app, "--strategy") || (!has_ranks && has_default)) {
    return flags.options.strategy();
  }
  // Finding all devices takes a while.
  const bool names_devices =
      !flags.devices.devices.empty() || !flags.options.devices().empty();
  const size_t count =
      !has_ranks && names_devices ? devices_of(flags).size() : 1;
  return choose_strategy(has_ranks, count);
}

void choose_devices(const RunFlags& flags, TrainOptions& options) {
  if (options.strategy() == Strategy::kDistributed) return;
  DeviceFlags devices = flags.devices;
  const bool is_open =
      (devices.devices.empty() && flags.options.devices().empty()) ||
      devices.devices == "auto";
  if (options.strategy() == Strategy::kSingle && is_open) {
    devices.devices = one_device();
    options.devices(to_devices(devices, "all"));
  } else {
    options.devices(devices_of(flags));
  }
}

// Finds errors before the training rather than after it.
void check_outputs(const RunFlags& flags) {
  // Only rank 0 writes. Other hosts need not have the folder.
  if (read_environment().rank != 0) return;
  for (const auto& path : {flags.report, flags.options.log().trace()}) {
    if (!path.empty()) const AtomicFile writable(path);
  }
}

[[noreturn]] void end_stopped(const training::RunReport& report) {
  // The signal is unknown if another rank stopped an evaluation.
  const int signal = report.stop_signal != 0 ? report.stop_signal : SIGTERM;
  const bool is_saved = !report.last_checkpoint.empty();
  log_warning(
      "train",
      fmt::format(
          "stopped by {} after step {}; {}",
          signal == SIGINT ? "Ctrl-C" : launch::signal_name(signal),
          report.steps,
          is_saved
              ? fmt::format("continue from {} with --resume auto",
                            report.last_checkpoint)
              : "no checkpoint was written, because there is no --out-dir"));
  const bool is_preempted =
      is_saved && (signal == SIGTERM || signal == SIGUSR1 || signal == SIGHUP);
  throw CLI::RuntimeError(is_preempted ? kExitPreempted : kExitSignal + signal);
}

// Writes the options of the run, so that it can be repeated.
void write_config(const RunFlags& flags) {
  const std::string& folder = flags.options.out_dir();
  if (folder.empty()) return;
  make_directories(folder);
  write_atomically(folder + "/config.json", config_of(*flags.app));
}

// Checks for errors that every rank would report, so that they are reported
// once and as bad usage.
void check_before_ranks(const RunFlags& flags, TrainOptions options) {
  const training::CommunicationOptions communication = options.communication();
  options.strategy(Strategy::kDataParallel);
  // These options are only for ranks.
  options.zero(ZeroStage::kNone);
  options.communication(training::CommunicationOptions());
  options.devices(devices_of(flags));
  const auto backend = device_backend(flags.ranks.backend);
  if (backend && backend->device_type != options.devices().front().type) {
    throw BadUsage(fmt::format(
        "[usage] --backend {} is for {} devices, got --devices {}; use "
        "--backend shm or tcp, or auto",
        backend->name, c10::DeviceTypeName(backend->device_type, true),
        join_names(options.devices())));
  }
  const training::Plan plan = training::make_plan(options);
  training::check_shards_of_ranks(
      communication, plan.shards,
      static_cast<int64_t>(options.devices().size()));
}

}  // namespace

int run_with_torch(int argc, char** argv, const std::function<int()>& run) {
  return run_and_report(argc, argv, [&] {
    try {
      return run();
    } catch (const c10::Error& error) {
      return fail(kExitFailed, error,
                  fmt::format("[torch] {}", error.what_without_backtrace()));
    }
  });
}

void run_task(const RunFlags& flags, const std::string& beginning,
              training::Task& task) {
  TrainOptions options = to_train_options(flags);
  options.strategy(strategy_of(flags));
  training::check_launched_ranks(options, read_environment().world_size);
  training::check_options(options);
  check_outputs(flags);
  // Printed first, because making devices, data and model takes a while.
  if (!flags.quiet && !is_own_rank() && read_environment().rank == 0) {
    write_now(stdout, fmt::format("{} with strategy {}\n", beginning,
                                  to_string(options.strategy())));
  }
  choose_devices(flags, options);
  training::RunContext context{.stop = [] { return InterruptScope::signal(); },
                               .command = command_line(),
                               .on_begin = [&flags] { write_config(flags); }};
  if (options.strategy() == Strategy::kDistributed) {
    if (!is_rank()) {
      check_before_ranks(flags, options);
      start_ranks(devices_of(flags).size());
    }
    join_ranks(flags.ranks, flags.devices, options, context);
    if (flags.is_verbose) {
      write_now(stdout, describe_rank(options, context.world) + "\n");
    }
  }
  const InterruptScope interrupts;
  const auto report = training::run_training(task, options, context);
  if (context.world.rank() != 0) return;
  if (!flags.report.empty()) training::write_report(flags.report, report);
  if (!report.interrupted) return;
  end_stopped(report);
}

}  // namespace lockstep::cli
