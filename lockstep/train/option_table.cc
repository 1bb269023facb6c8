#include "lockstep/train/option_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/train/best_evaluation.h"

namespace lockstep::training {
namespace {

using enum Conflict::Kind;

using Table = std::vector<Option>;

void append(Table& table, Table rows) {
  std::ranges::move(rows, std::back_inserter(table));
}

Table step_options(TrainOptions& options) {
  return {
      {.name = "--strategy",
       .value = named(options.strategy(), parse_strategy),
       .help = "single, dp, ddp (one process per device) or dp-classic "
               "(replicates the model in every step, as nn.DataParallel does)",
       .default_text = "single; several --devices: dp; several ranks: ddp",
       .words = strategy_names()},
      {.name = "--batch-size",
       .value = &options.batch_size(),
       .help = "samples per step, over all devices",
       .range = at_least(1),
       .changes_bits = true},
      {.name = "--accumulate",
       .value = &options.accumulate(),
       .help = "micro-batches that each device computes one after another in a "
               "step, to save memory; each device has this many shards",
       .range = between(1, 4096)},
      {.name = "--precision",
       .value = named(options.precision(), parse_precision),
       .help = "fp32; bf16 or fp16: forward and loss in that type, weights and "
               "their gradients in float32",
       .words = precision_names(),
       .changes_bits = true},
      {.name = "--epochs",
       .value = &options.epochs(),
       .help = "passes over the data",
       .default_text = "1; with --max-steps: as many as needed",
       .range = at_least(options.max_steps() > 0 ? 0 : 1)},
      {.name = "--max-steps",
       .value = &options.max_steps(),
       .help = "stop after this many steps; 0: no limit",
       .range = at_least(0)},
      {.name = "--seed",
       .value = &options.seed(),
       .help = "seed of the initial weights, the order of the samples and "
               "dropout",
       .range = at_least(0),
       .changes_bits = true},
      {.name = "--shards",
       .value = &options.shards(),
       .help = "logical shards of a batch: the same number, with the same "
               "--intra-op-threads, gives the same bits on any devices; 0: one "
               "per device",
       .range = at_least(0),
       .changes_bits = true},
      {.name = "--clip-grad-norm",
       .value = &options.clip_grad_norm(),
       .help = "scale the gradient to this norm if it is larger; 0: off",
       .range = at_least(0),
       .changes_bits = true},
  };
}

Table communication_options(TrainOptions& options) {
  CommunicationOptions& communication = options.communication();
  const GradCompression compression = communication.compression();
  const bool is_local = communication.is_local();
  return {
      {.name = "--zero",
       .value = stage_value(options.zero()),
       .help = "ddp between hosts (tcp) or on GPUs (nccl): 1 splits the "
               "optimizer state among the ranks, 2 also the gradients",
       .range = between(0, 2)},
      {.name = "--grad-compression",
       .value = named(communication.compression(), parse_grad_compression),
       .help = "ddp: none; bf16 or fp16: send gradients in half the bytes; "
               "powersgd: send low-rank factors of each matrix of gradients",
       .words = grad_compression_names(),
       .changes_bits = compression != GradCompression::kNone},
      {.name = "--powersgd-rank",
       .value = &communication.powersgd_rank(),
       .help = "rank of the matrices that powersgd sends",
       .range = between(1, 1024),
       .member = "communication().powersgd_rank",
       .changes_bits = compression == GradCompression::kPowerSgd},
      {.name = "--local-steps",
       .value = &communication.local_steps(),
       .help = "ddp: steps that each rank makes independently before the ranks "
               "combine their parameters; 0: sum gradients in every step",
       .range = at_least(0),
       .member = "communication().local_steps",
       .changes_bits = is_local},
      {.name = "--outer-optimizer",
       .value = named(communication.outer_optimizer(), parse_outer_optimizer),
       .help = "after local steps: average (local SGD) or nesterov (DiLoCo)",
       .words = outer_optimizer_names(),
       .changes_bits = is_local},
      {.name = "--outer-lr",
       .value = &communication.outer_lr(),
       .help = "learning rate of the outer optimizer",
       .default_text = "nesterov: 0.7; average: 1",
       .range = above(0),
       .member = "communication().outer_lr",
       .changes_bits = is_local},
      {.name = "--outer-momentum",
       .value = &communication.outer_momentum(),
       .help = "momentum of nesterov",
       .range = Range{.least = 0, .most = 1, .excludes_most = true},
       .member = "communication().outer_momentum",
       .changes_bits = is_local},
  };
}

Table verification_options(TrainOptions& options) {
  VerifyOptions& verify = options.verify();
  return {
      {.name = "--show-shards",
       .value = &options.log().shards(),
       .help = "print which device gets which part of a batch, in the first "
               "step and whenever it changes"},
      {.name = "--intra-op-threads",
       .value = &options.intra_op_threads(),
       .help = "threads that compute a shard, on which the bits depend; 0: the "
               "cores of a host divided by its shards",
       .range = between(0, 4096),
       .changes_bits = true},
      {.name = "--bad-links",
       .value = named(verify.bad_links(), parse_bad_links),
       .help = "what to do if copies between devices arrive corrupted: stage "
               "(warn, and copy through host memory), stop, or ignore (don't "
               "check)",
       .words = {"stage", "stop", "ignore"}},
      {.name = "--verify-every",
       .value = &verify.every(),
       .help = "ddp over tcp or nccl: steps after which ranks compare their "
               "parameters and optimizer state, to find silent data "
               "corruption; the run then goes back to the last state that was "
               "equal on all ranks; 0: never; 1: each step also checks all "
               "memory that only one rank updates, over shm too",
       .range = at_least(0),
       .member = "verify().every"},
      {.name = "--verify-gradients",
       .value = &verify.gradients_every(),
       .help = "every N-th step computes its gradients twice, and a third time "
               "if they differ, to find a processor that computes wrong "
               "results; such a step takes twice as long; 0: never",
       .range = at_least(0),
       .member = "verify().gradients_every"},
      {.name = "--no-verify-first-step",
       .value = Switch{
           .is_on = [&] { return verify.steps() == Verify::kNever; },
           .turn =
               [&](bool is_on) {
                 verify.steps(is_on ? Verify::kNever : VerifyOptions().steps());
               }},
       .help = "skip the checks of the first and some later steps, which "
               "compare a replica with the model, and the loss with that of "
               "the whole batch"},
  };
}

Table loading_options(TrainOptions& options) {
  EvaluationOptions& evaluation = options.evaluation();
  return {
      {.name = "shuffle",
       .value = &options.loading().shuffle(),
       .help = "shuffle the samples anew in each epoch",
       .changes_bits = true},
      {.name = "--drop-last",
       .value = &options.loading().drop_last(),
       .help = "leave out the samples at the end of an epoch that don't fill a "
               "batch",
       .changes_bits = true},
      {.name = "--eval-every",
       .value = &evaluation.every(),
       .help = "steps between evaluations on the test split; 0: only at the "
               "end",
       .range = at_least(0),
       .member = "evaluation().every"},
      {.name = "evaluation().batch_size",
       .value = &evaluation.batch_size(),
       .help = "samples per batch of an evaluation; 0: those of the run, or "
               "250 if that is more",
       .range = at_least(0)},
      {.name = "--early-stop",
       .value = &evaluation.early_stop(),
       .help = "stop after this many evaluations in a row without an "
               "improvement of the --save-best metric, or else of the loss; 0: "
               "never",
       .range = at_least(0),
       .member = "evaluation().early_stop"},
      {.name = "--no-eval",
       .value = Switch{.is_on = [&] { return !evaluation.enabled(); },
                       .turn = [&](bool is_on) { evaluation.enabled(!is_on); }},
       .help = "do not evaluate on the test split at the end"},
      {.name = "--workers",
       .value = &options.loading().workers(),
       .help = "threads that prepare batches; 0: the training thread prepares "
               "them",
       .range = between(0, 256),
       .member = "loading().workers"},
      {.name = "--save-best",
       .value = &options.checkpoint().save_best(),
       .help = "keep the checkpoint of the best evaluation in OUT_DIR/best, by "
               "this metric: loss, accuracy, ...; for metrics other than "
               "accuracy, lower is better unless :max follows",
       .type = "METRIC",
       .default_text = "none",
       .needs = "--out-dir"},
  };
}

Table spike_options(TrainOptions& options) {
  SpikeOptions& spikes = options.spikes();
  const bool is_on = spikes.action() != OnSpike::kNothing;
  return {
      {.name = "--on-spike",
       .value = named(spikes.action(), parse_on_spike),
       .help = "when the loss spikes: nothing; skip: leave out the update; "
               "roll-back: also restore the last checkpoint's weights, and "
               "continue with the next batch",
       .words = on_spike_names(),
       .changes_bits = is_on},
      {.name = "--spike-sigma",
       .value = &spikes.sigma(),
       .help = "a spike is above the mean of the recent losses by this many "
               "standard deviations",
       .range = above(0),
       .member = "spikes().sigma",
       .changes_bits = is_on},
      {.name = "--spike-window",
       .value = &spikes.window(),
       .help = "number of recent losses that a spike is compared with",
       .range = between(2, 1'000'000),
       .member = "spikes().window",
       .changes_bits = is_on},
  };
}

Table output_options(TrainOptions& options) {
  CheckpointOptions& checkpoint = options.checkpoint();
  return {
      {.name = "--out-dir",
       .value = &options.out_dir(),
       .help = "folder for the checkpoints and run.json",
       .type = "DIR",
       .default_text = "none: nothing is written"},
      {.name = "--checkpoint-every",
       .value = &checkpoint.every(),
       .help = "steps between checkpoints; 0: only at the end",
       .range = at_least(0),
       .member = "checkpoint().every",
       // A spike rolls back to a checkpoint.
       .changes_bits = options.spikes().action() == OnSpike::kRollBack},
      {.name = "--init-from",
       .value = &options.init_from(),
       .help = "weights to start from: a checkpoint, a .safetensors file or a "
               "folder of Hugging Face or torch.distributed.checkpoint; it "
               "also gives the sizes of a language model",
       .type = "PATH",
       .default_text = "random weights"},
      {.name = "--resume",
       .value = &checkpoint.resume(),
       .help = "continue as if the run had never stopped, with the same bits: "
               "from a checkpoint, from the newest one in a run's folder, or "
               "auto: from --out-dir, if it has one",
       .type = "auto|DIR",
       .default_text = "none: start at the beginning"},
      {.name = "--trace",
       .value = &options.log().trace(),
       .help = "write a timeline of all ranks here: JSON for Perfetto "
               "(ui.perfetto.dev) and chrome://tracing",
       .type = "PATH",
       .default_text = "none"},
  };
}

Table checkpoint_options(TrainOptions& options) {
  CheckpointOptions& checkpoint = options.checkpoint();
  return {
      {.name = "--snapshot-every",
       .value = &checkpoint.snapshot_every(),
       .help = "steps between copies in memory, for `lockstep run "
               "--max-restarts`: at most this many steps are lost with a "
               "worker; 0: no copies",
       .range = at_least(0),
       .member = "checkpoint().snapshot_every"},
      {.name = "--checkpoint-every-epoch",
       .value = &checkpoint.each_epoch(),
       .help = "also write a checkpoint at the end of each epoch, and keep all "
               "of them"},
      {.name = "--keep",
       .value = &checkpoint.keep(),
       .help = "number of newest checkpoints to keep",
       .default_text = "3; with --checkpoint-every-epoch: all",
       .range = between(2, 1'000'000),
       .member = "checkpoint().keep"},
      {.name = "--allow-changes",
       .value = &checkpoint.allow_changes(),
       .help = "continue with settings that differ from the checkpoint's, "
               "which gives other bits",
       .needs = "--resume"},
  };
}

Table record_options(TrainOptions& options) {
  LogOptions& log = options.log();
  return {
      {.name = "--tensorboard",
       .value = &log.tensorboard(),
       .help = "folder for TensorBoard event files: loss, metrics, learning "
               "rate and time of each step",
       .type = "DIR",
       .default_text = "none"},
      {.name = "--trace-steps",
       .value = &log.trace_steps(),
       .help = "steps in the timeline: the last ones of the run",
       .range = between(1, 10'000),
       .needs = "--trace",
       .member = "log().trace_steps"},
      {.name = "--log-every",
       .value = &log.every(),
       .help = "steps between lines of progress if stdout is not a terminal",
       .range = at_least(1),
       .member = "log().every"},
      {.name = "--output-device",
       .value = &options.output_device(),
       .help = "dp-classic: the one of --devices that gathers the outputs and "
               "computes the loss; the first one holds the model, its "
               "gradients and the optimizer state",
       .type = "DEVICE",
       .default_text = "the first",
       .topic = "More about devices"},
  };
}

bool is_ddp(const TrainOptions& options) {
  return options.strategy() == Strategy::kDistributed;
}

bool is_classic(const TrainOptions& options) {
  return options.strategy() == Strategy::kDataParallelClassic;
}

bool compresses(const TrainOptions& options) {
  return options.communication().compression() != GradCompression::kNone;
}

bool is_local(const TrainOptions& options) {
  return options.communication().is_local();
}

bool splits_state(const TrainOptions& options) {
  return options.zero() != ZeroStage::kNone;
}

// The ranks have a common state only after outer steps.
bool is_between_outer_steps(const TrainOptions& options, int64_t every) {
  return is_local(options) &&
         every % options.communication().local_steps() != 0;
}

bool rolls_back(const TrainOptions& options) {
  return options.spikes().action() == OnSpike::kRollBack;
}

constexpr const char* kEvaluate = "leave out --no-eval, and set --eval-every";
constexpr const char* kMakeMultiple =
    "make it a multiple of --local-steps, or change --local-steps";
constexpr const char* kSaveForSpikes =
    "give --out-dir and --checkpoint-every, or use --on-spike skip";

constexpr Conflict kConflicts[] = {
    {"--save-best", kExcludes, "--no-eval",
     [](const TrainOptions& o) {
       return !o.checkpoint().save_best().empty() && !o.evaluation().enabled();
     },
     "the best of the evaluations is kept, and this run makes none", kEvaluate},
    {"--early-stop", kExcludes, "--no-eval",
     [](const TrainOptions& o) {
       return o.evaluation().early_stop() > 0 && !o.evaluation().enabled();
     },
     "evaluations decide when the run stops, and this run makes none",
     kEvaluate},
    {"--zero", kNeeds, "--strategy ddp",
     [](const TrainOptions& o) { return splits_state(o) && !is_ddp(o); },
     "ZeRO splits the optimizer state among ranks, and the other strategies "
     "have only one rank",
     "leave out --zero: one process holds the state once, however many devices "
     "it uses"},
    {"--grad-compression", kNeeds, "--strategy ddp",
     [](const TrainOptions& o) { return compresses(o) && !is_ddp(o); },
     "it changes what ranks send each other, and the other strategies have "
     "only one rank",
     "leave out --grad-compression"},
    {"--local-steps", kNeeds, "--strategy ddp",
     [](const TrainOptions& o) { return is_local(o) && !is_ddp(o); },
     "it changes when ranks send each other something, and the other "
     "strategies have only one rank",
     "leave out --local-steps"},
    {"--zero", kExcludes, "--grad-compression",
     [](const TrainOptions& o) { return splits_state(o) && compresses(o); },
     "ZeRO splits what the ranks update together, and with compression each "
     "rank updates everything",
     "leave out --zero"},
    {"--zero", kExcludes, "--local-steps",
     [](const TrainOptions& o) { return splits_state(o) && is_local(o); },
     "ZeRO splits what the ranks update together, and with local steps each "
     "rank updates everything",
     "leave out --zero"},
    {"--checkpoint-every", kExcludes, "--local-steps",
     [](const TrainOptions& o) {
       return is_between_outer_steps(o, o.checkpoint().every());
     },
     "between outer steps the ranks have no common state to save",
     kMakeMultiple},
    {"--eval-every", kExcludes, "--local-steps",
     [](const TrainOptions& o) {
       return is_between_outer_steps(o, o.evaluation().every());
     },
     "between outer steps the ranks have no common state to evaluate",
     kMakeMultiple},
    {"--checkpoint-every-epoch", kExcludes, "--local-steps",
     [](const TrainOptions& o) {
       return o.checkpoint().each_epoch() && is_local(o);
     },
     "an epoch may end between outer steps, when the ranks have no common "
     "state to save",
     "use --checkpoint-every instead"},
    {"--precision", kExcludes, "--local-steps",
     [](const TrainOptions& o) {
       return o.precision() == Precision::kFloat16 && is_local(o);
     },
     "float16 needs a scale of the loss that the ranks agree on in every step",
     "use --precision bf16"},
    {"--grad-compression", kExcludes, "--local-steps",
     [](const TrainOptions& o) {
       return o.communication().compression() == GradCompression::kPowerSgd &&
              is_local(o);
     },
     "PowerSGD compresses gradients, and with local steps none are sent",
     "use bf16 or fp16, or leave out one of the two"},
    {"--on-spike", kExcludes, "--local-steps",
     [](const TrainOptions& o) {
       return o.spikes().action() != OnSpike::kNothing && is_local(o);
     },
     "with local steps each rank has its own losses, and the ranks would not "
     "leave out the same steps",
     "leave out one of the two"},
    {"--on-spike", kNeeds, "--out-dir",
     [](const TrainOptions& o) { return rolls_back(o) && o.out_dir().empty(); },
     "a spike can't roll back to a checkpoint if no checkpoints are written",
     kSaveForSpikes},
    {"--on-spike", kNeeds, "--checkpoint-every",
     [](const TrainOptions& o) {
       return rolls_back(o) && o.checkpoint().every() == 0;
     },
     "a spike can't roll back to a checkpoint if no checkpoints are written",
     kSaveForSpikes},
    {"--verify-gradients", kExcludes, "--strategy",
     [](const TrainOptions& o) {
       return o.verify().gradients_every() > 0 && is_classic(o);
     },
     "dp-classic runs LibTorch's backward, which computes gradients only once",
     "leave out --verify-gradients, or use --strategy dp"},
    {"--output-device", kNeeds, "--strategy dp-classic",
     [](const TrainOptions& o) {
       return !o.output_device().empty() && !is_classic(o);
     },
     "the other strategies compute the loss of a shard on the shard's device",
     "leave out --output-device"},
    {"--resume", kNeeds, "--out-dir",
     [](const TrainOptions& o) {
       return o.checkpoint().resume() == "auto" && o.out_dir().empty();
     },
     "auto continues the run in that folder",
     "give --out-dir DIR, the folder of the run to continue"},
    {"--init-from", kExcludes, "--resume",
     [](const TrainOptions& o) {
       const std::string& resume = o.checkpoint().resume();
       return !o.init_from().empty() && !resume.empty() && resume != "auto";
     },
     "--resume restores the weights of the checkpoint",
     "leave out --init-from"},
};

// Returns an option as a user would write it: "--zero 1", "--no-eval".
std::string as_written(const Table& table, const std::string& name) {
  const auto row = std::ranges::find(table, name, &Option::name);
  if (row == table.end() || is_flag(*row)) return name;
  return name + " " + value_text(*row);
}

void check_conflicts(const Table& table, const TrainOptions& options) {
  for (const Conflict& conflict : kConflicts) {
    if (!conflict.is_met(options)) continue;
    const std::string option = as_written(table, conflict.option);
    throw InvalidArgument(
        "train",
        {.code = ErrorCode::kBadOption,
         .what =
             conflict.kind == kNeeds
                 ? fmt::format("{} needs {}: {}", option, conflict.other,
                               conflict.why)
                 : fmt::format("{} and {} can't be used together: {}", option,
                               as_written(table, conflict.other), conflict.why),
         .fix = conflict.fix});
  }
}

// Throws for a number that is out of range. A default may be, where it stands
// for a value that is chosen later.
void check_range(const Option& row, const Option& usual) {
  if (is_in_range(row) || value_text(row) == value_text(usual)) return;
  throw InvalidArgument(
      "train",
      {.code = ErrorCode::kBadOption,
       .what = fmt::format("{} is out of range",
                           row.member.empty() ? key_of(row) : row.member),
       .expected = range_text(row),
       .got = value_text(row)});
}

}  // namespace

std::vector<Option> option_table(TrainOptions& options) {
  Table table = step_options(options);
  append(table, in_topic("Communication between ranks",
                         communication_options(options)));
  append(table,
         in_topic("Bits, and what checks them", verification_options(options)));
  append(table, in_topic("Loading and evaluation", loading_options(options)));
  append(table, in_topic("Spikes of the loss", spike_options(options)));
  append(table, in_group("Output", output_options(options)));
  append(table, in_topic("Checkpoints", checkpoint_options(options)));
  append(table, in_topic("Records of a run", record_options(options)));
  return table;
}

TextValue stage_value(ZeroStage& stage) {
  return {.get = [&stage] { return std::to_string(static_cast<int>(stage)); },
          .set =
              [&stage](const std::string& text) {
                stage = static_cast<ZeroStage>(std::stoi(text));
              }};
}

std::span<const Conflict> conflicts() { return kConflicts; }

void check_options(const TrainOptions& options) {
  TrainOptions current = options, usual;
  const Table table = option_table(current), usual_table = option_table(usual);
  for (size_t i = 0; i < table.size(); ++i) {
    check_range(table[i], usual_table[i]);
  }
  const std::string& metric = options.checkpoint().save_best();
  if (!metric.empty()) {
    const BestEvaluation readable(metric, options.evaluation().early_stop());
  }
  check_conflicts(table, current);
}

}  // namespace lockstep::training
