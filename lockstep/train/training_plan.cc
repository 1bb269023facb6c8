#include "lockstep/train/training_plan.h"

#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/numbers.h"
#include "lockstep/comm/environment.h"
#include "lockstep/train/option_table.h"

namespace lockstep::training {
namespace {

// The most shards or threads, as on the command line.
constexpr int64_t kMaxSaved = 4096;

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& fix, const std::string& got = "") {
  throw InvalidArgument("train", {.code = ErrorCode::kBadOption,
                                  .what = what,
                                  .expected = expected,
                                  .got = got,
                                  .fix = fix});
}

void check_devices(const TrainOptions& options) {
  if (!options.devices().empty()) return;
  throw InvalidArgument("train", {.code = ErrorCode::kNoSuchDevice,
                                  .what = "there is no device to train on",
                                  .fix = "set TrainOptions().devices("
                                         "lockstep::devices(\"auto\"))"});
}

int64_t shards_of(int64_t asked, int64_t count,
                  const std::vector<Device>& devices) {
  if (asked == 0) return count;
  if (asked >= count) return asked;
  refuse(fmt::format("{} can't be shared by {} ({})", counted(asked, "shard"),
                     counted(count, "device"), join_names(devices)),
         fmt::format("at least {}, best a multiple of it", count),
         fmt::format("use --shards {}, or fewer --devices", count),
         std::to_string(asked));
}

// Returns the number of shards: one for each micro-batch of each device.
int64_t shards_of_accumulation(const TrainOptions& options, int64_t devices) {
  const int64_t shards = options.accumulate() * devices;
  if (options.shards() != 0 && options.shards() != shards) {
    refuse(fmt::format("{} micro-batches on each of {} are {}",
                       options.accumulate(), counted(devices, "device"),
                       counted(shards, "shard")),
           fmt::format("--shards {}, or none", shards), "",
           fmt::format("--shards {}", options.shards()));
  }
  if (options.batch_size() % shards != 0) {
    const int64_t below = options.batch_size() / shards * shards;
    refuse(fmt::format("a batch of {} can't be cut into {} equal "
                       "micro-batches on each of {}",
                       options.batch_size(), options.accumulate(),
                       counted(devices, "device")),
           fmt::format("a multiple of {}: {}{}", shards,
                       below > 0 ? fmt::format("{} or ", below) : "",
                       below + shards),
           "change --batch-size or --accumulate",
           fmt::format("{}", options.batch_size()));
  }
  return shards;
}

void check_single(const TrainOptions& options) {
  if (options.strategy() != Strategy::kSingle ||
      options.devices().size() == 1) {
    return;
  }
  refuse("strategy single trains on one device", "one of them in --devices",
         "use --strategy dp for all of them, or leave out --strategy",
         join_names(options.devices()));
}

// Returns true if the launcher shows each rank only its own GPU, which is the
// first one for every rank, as `lockstep run --virtual-local-rank` does.
bool sees_only_own_device(const TrainOptions& options) {
  if (options.devices().size() != 1 || options.devices()[0].is_cpu()) {
    return false;
  }
  const Environment environment = read_environment();
  return environment.local_world_size > 1 && environment.local_rank == 0;
}

Device device_of_rank(const TrainOptions& options, const ProcessGroup& world) {
  if (sees_only_own_device(options)) return options.devices()[0];
  const auto local_rank = static_cast<size_t>(world.local_rank());
  if (local_rank < options.devices().size())
    return options.devices()[local_rank];
  throw InvalidArgument(
      "train",
      {.code = ErrorCode::kNoSuchDevice,
       .what = fmt::format("rank {} has no device", world.rank()),
       .expected = fmt::format("a device for each of {} of this host",
                               counted(world.local_size(), "rank")),
       .got = join_names(options.devices()),
       .fix = "give --devices as many as there are ranks on this host"});
}

size_t output_device_of(const TrainOptions& options) {
  if (options.output_device().empty()) return 0;
  for (size_t k = 0; k < options.devices().size(); ++k) {
    if (options.devices()[k].name() == options.output_device()) return k;
  }
  throw InvalidArgument("train",
                        {.code = ErrorCode::kNoSuchDevice,
                         .what = "--output-device is not one of --devices",
                         .expected = "one of " + join_names(options.devices()),
                         .got = options.output_device()});
}

}  // namespace

void check_at_least(const char* option, int64_t value, int64_t least) {
  if (value >= least) return;
  throw InvalidArgument("train",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("{} is too small", option),
                         .expected = fmt::format("at least {}", least),
                         .got = std::to_string(value)});
}

void check_not_negative(const char* option, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw InvalidArgument("train",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("{} can't be used", option),
                         .expected = "a finite number of at least 0",
                         .got = fmt::format("{}", value)});
}

std::optional<int64_t> saved_number(const Settings& saved, const char* name,
                                    int64_t most) {
  const auto found = saved.find(name);
  if (found == saved.end()) return std::nullopt;
  const auto number = parse_number<int64_t>(found->second);
  if (number && *number > 0 && *number <= most) return number;
  throw CheckpointError({.code = ErrorCode::kBadOption,
                         .what = fmt::format("'{}' can't be used", name),
                         .expected = fmt::format("1 to {}", most),
                         .got = found->second.substr(0, 40)});
}

void check_launched_ranks(const TrainOptions& options, int64_t group_size) {
  const int64_t ranks = read_environment().world_size;
  if (ranks == 1) return;
  const auto refuse_copies = [&](const std::string& expected,
                                 const std::string& got,
                                 const std::string& fix) {
    throw InvalidArgument(
        "train", {.code = ErrorCode::kBadOption,
                  .what = fmt::format(
                      "the launcher started {}, and each of them would train "
                      "the same run",
                      counted(ranks, "rank")),
                  .expected = expected,
                  .got = got,
                  .fix = fix});
  };
  if (options.strategy() != Strategy::kDistributed) {
    refuse_copies(
        "strategy ddp", "strategy " + to_string(options.strategy()),
        "use --strategy ddp or leave out --strategy; in C++, set "
        "strategy(training::Strategy::kDistributed) and pass lockstep::init() "
        "to fit(). Or start the program without a launcher");
  }
  if (group_size == 1) {
    refuse_copies("the group of all ranks", "a group of one rank",
                  "pass lockstep::init() to fit()");
  }
}

void check_shards_of_ranks(const CommunicationOptions& communication,
                           int64_t shards, int64_t ranks) {
  if (!communication.is_local() || shards % ranks == 0) return;
  refuse(fmt::format(
             "{} can't be shared equally by {}, which make steps independently",
             counted(shards, "shard"), counted(ranks, "rank")),
         "a multiple of the ranks", "change --shards");
}

Plan make_plan(const TrainOptions& options, const ProcessGroup& world,
               const Settings& saved) {
  check_options(options);
  check_devices(options);
  Plan plan;
  plan.devices = options.devices();
  check_single(options);
  if (options.strategy() == Strategy::kDistributed) {
    plan.devices = {device_of_rank(options, world)};
  }
  plan.output_device = output_device_of(options);
  plan.rank = world.rank();
  plan.ranks = world.size();
  plan.world_size = static_cast<int64_t>(plan.devices.size()) * plan.ranks;
  if (options.accumulate() > 1) {
    plan.shards = shards_of_accumulation(options, plan.world_size);
  } else {
    const int64_t shards =
        options.shards() > 0
            ? options.shards()
            : saved_number(saved, "shards", kMaxSaved).value_or(0);
    plan.shards = shards_of(shards, plan.world_size, plan.devices);
  }
  check_shards_of_ranks(options.communication(), plan.shards, world.size());
  plan.intra_op_threads =
      options.intra_op_threads() > 0
          ? options.intra_op_threads()
          : static_cast<int>(
                saved_number(saved, "intra_op_threads", kMaxSaved).value_or(0));
  if (plan.intra_op_threads == 0) {
    const bool is_host = plan.devices.front().is_cpu();
    plan.intra_op_threads =
        is_host ? threads_of_shard(plan.devices, plan.shards, world.size(),
                                   world.local_size())
                : 1;
  }
  return plan;
}

}  // namespace lockstep::training
