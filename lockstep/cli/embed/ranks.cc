#include "lockstep/cli/embed/ranks.h"

#include <chrono>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/env.h"
#include "lockstep/base/format.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/base/process.h"
#include "lockstep/base/terminal.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/comm/device_backends.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/launch/run.h"
#include "lockstep/train/record/progress.h"
#include "lockstep/train/training_plan.h"

namespace lockstep::cli {

namespace {

// Throws if there is a device without a rank, which would be left out silently.
void check_devices(const DeviceFlags& flags) {
  // "all", "cpu" and "cuda" stand for all devices that exist.
  const bool has_number =
      flags.devices.find_first_of("0123456789") != std::string::npos;
  if (!has_number) return;
  const size_t count = to_devices(flags, "all").size();
  const auto ranks = static_cast<size_t>(read_environment().local_world_size);
  if (count <= ranks) return;
  throw BadUsage(
      fmt::format("[usage] --devices {} names {} devices, but the launcher "
                  "started {} on this host; start a rank for each device "
                  "(lockstep run --nproc-per-node {}), or name {}",
                  flags.devices, count,
                  counted(static_cast<int64_t>(ranks), "rank"), count, ranks));
}

// Returns the type of the devices that the ranks of this host compute on. The
// ranks have not met yet.
torch::DeviceType device_type_of(const DeviceFlags& flags,
                                 const std::vector<Device>& defaults) {
  std::vector<Device> named = defaults;
  if (!flags.devices.empty()) named = to_devices(flags, "all");
  return named.empty() ? accelerator::available().value_or(torch::kCPU)
                       : named.front().type;
}

}  // namespace

std::vector<Option> rank_options(RankFlags& flags) {
  constexpr const char* kRanks = "Communication between ranks";
  return {
      {.name = "--backend",
       .value = &flags.backend,
       .help = "ddp: auto, shm, tcp or nccl; auto: nccl for GPUs, shm on one "
               "host, else tcp",
       .topic = kRanks,
       .words = backend_names(),
       .former_words = {"gloo"}},
      {.name = "--timeout",
       .value = &flags.timeout_s,
       .help = "ddp: longest time in seconds that a rank waits for the others",
       .type = "S",
       .topic = kRanks,
       .range = between(1, 86'400)},
  };
}

bool is_rank() {
  const Environment environment = read_environment();
  return environment.world_size > 1 || environment.launcher == "torchrun";
}

bool is_own_rank() { return env(kOwnRankVariable).has_value(); }

void start_ranks(size_t count) {
  launch::RunOptions options;
  options.workers = static_cast<int>(count);
  // Only rank 0 prints, and its progress bar is better without a label.
  options.label_lines = launch::LabelLines::kOff;
  options.is_stdout_raw = true;
  options.environment[kOwnRankVariable] = "1";
  if (is_terminal(STDOUT_FILENO)) {
    options.environment[training::kTerminalColumns] =
        std::to_string(terminal_width(STDOUT_FILENO));
  }
  std::vector<std::string> command = command_line();
  command[0] = own_program();
  throw CLI::RuntimeError(launch::run(options, command));
}

void join_ranks(const RankFlags& flags, const DeviceFlags& devices,
                training::TrainOptions& options,
                training::RunContext& context) {
  check_devices(devices);
  ProcessGroupOptions group;
  group.backend(flags.backend);
  group.timeout(std::chrono::seconds(flags.timeout_s));
  group.bad_links(options.verify().bad_links());
  group.device_type(device_type_of(devices, options.devices()));
  context.world = init(group);
  const auto devices_now =
      [devices, defaults = options.devices()](const ProcessGroup& ranks) {
        return devices.devices.empty() && !defaults.empty()
                   ? defaults
                   : rank_devices(devices, ranks);
      };
  options.devices(devices_now(context.world));
  context.rejoin = [group, devices_now](training::RunContext& run_context,
                                        training::TrainOptions& now,
                                        const std::string& why) {
    const auto next =
        init_next(group, why, [] { return InterruptScope::signal() != 0; });
    if (!next) return false;
    run_context.world = *next;
    now.devices(devices_now(*next));
    return true;
  };
}

std::string describe_rank(const training::TrainOptions& options,
                          const ProcessGroup& world) {
  const auto plan = training::make_plan(options, world);
  const ShardRange own =
      shards_of_worker(world.rank(), world.size(), plan.shards);
  const int64_t samples =
      samples_of(own, options.batch_size(), plan.shards).count();
  return fmt::format("Rank: {} | Local rank: {} | Device: {} | Batch: {}",
                     world.rank(), world.local_rank(), plan.devices[0].name(),
                     samples);
}

}  // namespace lockstep::cli
