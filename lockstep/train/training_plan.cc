#include "lockstep/train/training_plan.h"

#include <cmath>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/numbers.h"
#include "lockstep/comm/environment.h"
#include "lockstep/train/best_evaluation.h"

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

void require(bool holds, const char* name, const char* expected, double got) {
  if (holds) return;
  refuse(fmt::format("{} can't be", name), expected, "",
         fmt::format("{:g}", got));
}

void check_numbers(const CommunicationOptions& options) {
  require(options.powersgd_rank() >= 1, "powersgd_rank", "1 or more",
          static_cast<double>(options.powersgd_rank()));
  require(options.local_steps() >= 0, "local_steps", "0 or more",
          static_cast<double>(options.local_steps()));
  require(!options.outer_lr() || *options.outer_lr() > 0, "outer_lr",
          "more than 0", options.outer_lr().value_or(0));
  require(options.outer_momentum() >= 0 && options.outer_momentum() < 1,
          "outer_momentum", "at least 0 and below 1", options.outer_momentum());
}

void check_numbers(const SpikeOptions& options) {
  require(std::isfinite(options.sigma()) && options.sigma() > 0, "spike_sigma",
          "a finite number above 0", options.sigma());
  require(options.window() >= 2, "spike_window", "2 or more",
          static_cast<double>(options.window()));
}

// Throws if options that look at evaluations are set without evaluations.
void check_evaluations(const TrainOptions& options) {
  const std::string& metric = options.checkpoint().save_best();
  const int64_t patience = options.evaluation().early_stop();
  if (!metric.empty()) const BestEvaluation readable(metric, patience);
  const bool looks = !metric.empty() || patience > 0;
  if (!looks || options.evaluation().enabled()) return;
  refuse("save_best and early_stop need evaluations, and this run makes none",
         "", "leave out --no-eval, and set --eval-every");
}

void check_zero(const TrainOptions& options) {
  if (options.zero() == ZeroStage::kNone ||
      options.strategy() == Strategy::kDistributed) {
    return;
  }
  refuse(
      "ZeRO splits the optimizer state among ranks, and this strategy has only "
      "one rank",
      "--strategy ddp",
      "leave out --zero: one process holds the state once, however many "
      "devices it uses");
}

// Checks local_steps: the ranks have a common state only at outer steps.
void check_local_steps(const TrainOptions& options) {
  const int64_t steps = options.communication().local_steps();
  const auto check_multiple = [&](const char* name, int64_t every) {
    if (every % steps == 0) return;
    refuse(fmt::format("{} {} is between outer steps", name, every),
           fmt::format("a multiple of local_steps {}", steps),
           "change one of the two");
  };
  check_multiple("checkpoint().every", options.checkpoint().every());
  check_multiple("evaluation().every", options.evaluation().every());
  if (options.checkpoint().each_epoch()) {
    refuse("an epoch may end between outer steps", "checkpoint().every",
           "leave out --checkpoint-every-epoch");
  }
  if (options.precision() == Precision::kFloat16) {
    refuse(
        "float16 needs a scale of the loss that the ranks agree on in every "
        "step",
        "fp32 or bf16 with local_steps", "use --precision bf16");
  }
  if (options.communication().compression() == GradCompression::kPowerSgd) {
    refuse("PowerSGD compresses gradients, and with local_steps none are sent",
           "none, bf16 or fp16", "leave out one of the two");
  }
}

void check_communication(const TrainOptions& options) {
  check_numbers(options.communication());
  const bool is_plain =
      options.communication().compression() == GradCompression::kNone &&
      !options.communication().is_local();
  if (is_plain) return;
  if (options.strategy() != Strategy::kDistributed) {
    refuse(
        "compression and local steps are for what ranks send each other, and "
        "this strategy has only one rank",
        "--strategy ddp", "leave out --grad-compression and --local-steps");
  }
  if (options.zero() != ZeroStage::kNone) {
    refuse(
        "ZeRO splits what the ranks update together, but with compression or "
        "local steps each rank updates everything",
        "one of them", "leave out --zero");
  }
  if (options.communication().is_local()) check_local_steps(options);
}

void check_spikes(const TrainOptions& options) {
  check_numbers(options.spikes());
  const OnSpike action = options.spikes().action();
  if (action != OnSpike::kNothing && options.communication().is_local()) {
    refuse(
        "with local_steps each rank has its own losses, and the ranks would "
        "not leave out the same steps",
        "a loss that all ranks share", "leave out one of the two");
  }
  const bool saves =
      !options.out_dir().empty() && options.checkpoint().every() > 0;
  if (action == OnSpike::kRollBack && !saves) {
    refuse(
        "a spike can't roll back to a checkpoint if no checkpoints are written",
        "out_dir and checkpoint().every",
        "give --out-dir and --checkpoint-every, or --on-spike skip");
  }
}

void check_verification(const TrainOptions& options) {
  check_at_least("verify().every", options.verify().every(), 0);
  check_at_least("verify().gradients_every", options.verify().gradients_every(),
                 0);
  const bool is_classic = options.strategy() == Strategy::kDataParallelClassic;
  if (!is_classic || options.verify().gradients_every() == 0) return;
  refuse(
      "dp-classic runs LibTorch's backward, which computes gradients only once",
      "another strategy", "leave out --verify-gradients, or use dp");
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
           "", fmt::format("{}", options.batch_size()));
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
  if (options.strategy() != Strategy::kDataParallelClassic) {
    refuse(
        "only dp-classic has an output device: the other strategies compute "
        "the loss of a shard on the shard's device",
        "--strategy dp-classic", "leave out --output-device");
  }
  for (size_t k = 0; k < options.devices().size(); ++k) {
    if (options.devices()[k].name() == options.output_device()) return k;
  }
  throw InvalidArgument("train",
                        {.code = ErrorCode::kNoSuchDevice,
                         .what = "the output device is not one of the devices",
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

void check_options(const TrainOptions& options) {
  check_at_least("batch_size", options.batch_size(), 1);
  check_at_least("accumulate", options.accumulate(), 1);
  check_at_least("max_steps", options.max_steps(), 0);
  check_at_least("epochs", options.epochs(), options.max_steps() > 0 ? 0 : 1);
  check_at_least("shards", options.shards(), 0);
  check_at_least("evaluation().every", options.evaluation().every(), 0);
  check_at_least("evaluation().early_stop", options.evaluation().early_stop(),
                 0);
  check_evaluations(options);
  check_zero(options);
  check_communication(options);
  check_spikes(options);
  check_verification(options);
  check_at_least("evaluation().batch_size", options.evaluation().batch_size(),
                 0);
  check_at_least("checkpoint().every", options.checkpoint().every(), 0);
  check_at_least("checkpoint().snapshot_every",
                 options.checkpoint().snapshot_every(), 0);
  if (options.checkpoint().keep() != 0) {
    check_at_least("checkpoint().keep", options.checkpoint().keep(), 2);
  }
  check_at_least("log().every", options.log().every(), 1);
  check_at_least("log().trace_steps", options.log().trace_steps(), 1);
  check_not_negative("clip_grad_norm", options.clip_grad_norm());
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
