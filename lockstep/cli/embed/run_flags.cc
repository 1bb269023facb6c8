#include "lockstep/cli/embed/run_flags.h"

#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/config_file.h"

namespace lockstep::cli {
namespace {

// Adds the options for communication over slow links.
void add_communication_options(CLI::App& app, RunFlags& flags) {
  training::CommunicationOptions& options = flags.options.communication();
  add_choice(app, "--grad-compression", flags.grad_compression,
             training::grad_compression_names(),
             "ddp: none; bf16 or fp16: send gradients in half the bytes; "
             "powersgd: send low-rank factors of each matrix of gradients");
  add_count(app, "--powersgd-rank", options.powersgd_rank(), {1, 1024},
            "rank of the matrices that powersgd sends");
  add_count(app, "--local-steps", options.local_steps(), {0},
            "ddp: steps that each rank makes independently before the ranks "
            "combine their parameters; 0: sum gradients in every step");
  add_choice(app, "--outer-optimizer", flags.outer_optimizer,
             training::outer_optimizer_names(),
             "after local steps: average (local SGD) or nesterov (DiLoCo)");
  add_number(app, "--outer-lr", options.outer_lr(),
             "learning rate of the outer optimizer")
      ->default_str("nesterov: 0.7; average: 1")
      ->check(number(0));
  add_number(app, "--outer-momentum", options.outer_momentum(),
             "momentum of nesterov")
      ->check(number(0));
}

void add_length_options(CLI::App& app, RunFlags& flags) {
  add_choice(app, "--strategy", flags.strategy, training::strategy_names(),
             "single, dp, ddp (one process per device) or dp-classic "
             "(replicates the model in every step, as nn.DataParallel does)")
      ->default_str("single; several --devices: dp; several ranks: ddp");
  add_rank_options(app, flags.ranks);
  app.add_flag("--show-shards", flags.options.log().shards(),
               "print which device gets which part of a batch, in the first "
               "step and whenever it changes [no]");
  app.add_flag("--verbose-ranks", flags.is_verbose,
               "ddp: print a line for each rank: its device and its part of "
               "the batch [no]");
  add_count(app, "--batch-size", flags.options.batch_size(), {1},
            "samples per step, over all devices");
  add_count(app, "--accumulate", flags.options.accumulate(), {1, 4096},
            "micro-batches that each device computes one after another in a "
            "step, to save memory; each device has this many shards");
  add_choice(app, "--precision", flags.precision, training::precision_names(),
             "fp32; bf16 or fp16: forward and loss in that type, weights "
             "and their gradients in float32");
  add_count(app, "--zero", flags.zero, {0, 2},
            "ddp between hosts (tcp) or on GPUs (nccl): 1 splits the optimizer "
            "state among the ranks, 2 also the gradients");
  app.add_flag("--drop-last", flags.options.loading().drop_last(),
               "leave out the samples at the end of an epoch that don't fill a "
               "batch [no]");
  add_count(app, "--epochs", flags.epochs, {1}, "passes over the data")
      ->default_str("1; with --max-steps: as many as needed");
  add_count(app, "--max-steps", flags.options.max_steps(), {0},
            "stop after this many steps; 0: no limit");
  add_count(
      app, "--seed", flags.options.seed(), {0},
      "seed of the initial weights, the order of the samples and dropout");
  add_count(app, "--shards", flags.options.shards(), {0},
            "logical shards of a batch: the same number, with the same "
            "--intra-op-threads, gives the same bits on any devices; 0: one "
            "per device");
  add_count(app, "--intra-op-threads", flags.options.intra_op_threads(),
            {0, 4096},
            "threads that compute a shard, on which the bits depend; 0: the "
            "cores of a host divided by its shards");
  add_count(app, "--eval-every", flags.options.evaluation().every(), {0},
            "steps between evaluations on the test split; 0: only at the end");
  add_count(app, "--early-stop", flags.options.evaluation().early_stop(), {0},
            "stop after this many evaluations in a row without an improvement "
            "of the --save-best metric, or else of the loss; 0: never");
  app.add_flag("--no-eval", flags.no_eval,
               "do not evaluate on the test split at the end [no]");
  add_number(app, "--clip-grad-norm", flags.options.clip_grad_norm(),
             "scale the gradient to this norm if it is larger; 0: off")
      ->check(number(0));
  add_choice(app, "--on-spike", flags.on_spike, training::on_spike_names(),
             "when the loss spikes: nothing; skip: leave out the update; "
             "roll-back: also restore the last checkpoint's weights, and "
             "continue with the next batch");
  add_number(app, "--spike-sigma", flags.options.spikes().sigma(),
             "a spike is above the mean of the recent losses by this many "
             "standard deviations")
      ->check(number(0));
  add_count(app, "--spike-window", flags.options.spikes().window(),
            {2, 1'000'000},
            "number of recent losses that a spike is compared with");
  add_count(
      app, "--workers", flags.options.loading().workers(), {0, 256},
      "threads that prepare batches; 0: the training thread prepares them");
}

void add_output_options(CLI::App& app, RunFlags& flags) {
  const auto add = [](CLI::Option* option) {
    option->group("Output");
    return option;
  };
  add(app.add_option("--out-dir", flags.options.out_dir(),
                     "folder for the checkpoints and run.json"))
      ->type_name("DIR")
      ->default_str("none: nothing is written");
  add(add_count(app, "--checkpoint-every", flags.options.checkpoint().every(),
                {0}, "steps between checkpoints; 0: only at the end"));
  add(add_count(
      app, "--verify-every", flags.options.verify().every(), {0},
      "ddp over tcp or nccl: steps after which ranks compare their parameters "
      "and optimizer state, to find silent data corruption; the run then goes "
      "back to the last state that was equal on all ranks; 0: never; 1: each "
      "step also checks all memory that only one rank updates, over shm too"));
  add(add_count(app, "--verify-gradients",
                flags.options.verify().gradients_every(), {0},
                "every N-th step computes its gradients twice, and a third "
                "time if they differ, to find a processor that computes wrong "
                "results; such a step takes twice as long; 0: never"));
  add(app.add_flag(
      "--no-verify-first-step", flags.no_first_step_check,
      "skip the checks of the first and some later steps, which compare a "
      "replica with the model, and the loss with that of the whole batch "
      "[no]"));
  add(add_count(
      app, "--snapshot-every", flags.options.checkpoint().snapshot_every(), {0},
      "steps between copies in memory, for `lockstep run --max-restarts`: at "
      "most this many steps are lost with a worker; 0: no copies"));
  add(app.add_flag("--checkpoint-every-epoch",
                   flags.options.checkpoint().each_epoch(),
                   "also write a checkpoint at the end of each epoch, and keep "
                   "all of them [no]"));
  add(app.add_option(
          "--save-best", flags.options.checkpoint().save_best(),
          "keep the checkpoint of the best evaluation in OUT_DIR/best, by this "
          "metric: loss, accuracy, ...; for metrics other than accuracy, lower "
          "is better unless :max follows"))
      ->type_name("METRIC")
      ->default_str("none")
      ->needs("--out-dir");
  add(add_count(app, "--keep", flags.options.checkpoint().keep(),
                {2, 1'000'000}, "number of newest checkpoints to keep"))
      ->default_str("3; with --checkpoint-every-epoch: all");
  add(app.add_option(
          "--init-from", flags.options.init_from(),
          "weights to start from: a checkpoint, a .safetensors file or a "
          "folder of Hugging Face or torch.distributed.checkpoint; it also "
          "gives the sizes of a language model"))
      ->type_name("PATH")
      ->default_str("random weights");
  auto* resume =
      add(app.add_option(
              "--resume", flags.options.checkpoint().resume(),
              "continue as if the run had never stopped, with the same bits: "
              "from a checkpoint, from the newest one in a run's folder, or "
              "auto: from --out-dir, if it has one"))
          ->type_name("auto|DIR")
          ->default_str("none: start at the beginning");
  add(app.add_flag("--allow-changes",
                   flags.options.checkpoint().allow_changes(),
                   "continue with settings that differ from the checkpoint's, "
                   "which gives other bits [no]"))
      ->needs(resume);
  add(add_path(app, "--report", flags.report, "also write run.json here"));
  add(add_path(
      app, "--tensorboard", flags.options.log().tensorboard(),
      "folder for TensorBoard event files: loss, metrics, learning rate "
      "and time of each step",
      "DIR"));
  add(add_path(app, "--trace", flags.options.log().trace(),
               "write a timeline of all ranks here: JSON for Perfetto "
               "(ui.perfetto.dev) and chrome://tracing"));
  add(add_count(app, "--trace-steps", flags.options.log().trace_steps(),
                {1, 10'000}, "steps in the timeline: the last ones of the run"))
      ->needs("--trace");
  add(add_count(app, "--log-every", flags.options.log().every(), {1},
                "steps between lines of progress if stdout is not a terminal"));
  add(app.add_flag("--quiet", flags.quiet,
                   "print only warnings and errors [no]"));
}

}  // namespace

RunFlags flags_with(const training::TrainOptions& defaults) {
  RunFlags flags;
  flags.options = defaults;
  flags.precision = training::to_string(defaults.precision());
  flags.zero = static_cast<int>(defaults.zero());
  flags.grad_compression =
      training::to_string(defaults.communication().compression());
  flags.outer_optimizer =
      training::to_string(defaults.communication().outer_optimizer());
  flags.on_spike = training::to_string(defaults.spikes().action());
  flags.bad_links = to_string(defaults.verify().bad_links());
  return flags;
}

training::Strategy choose_strategy(const std::string& name, bool has_ranks,
                                   size_t devices) {
  if (!name.empty()) return training::parse_strategy(name);
  if (has_ranks) return training::Strategy::kDistributed;
  return devices > 1 ? training::Strategy::kDataParallel
                     : training::Strategy::kSingle;
}

void add_run_options(CLI::App& app, RunFlags& flags) {
  flags.app = &app;
  add_config_option(app, "A run writes its options to OUT_DIR/config.json");
  add_length_options(app, flags);
  add_communication_options(app, flags);
  add_device_options(app, flags.devices,
                     "single: the first GPU, or cpu; dp, ddp: all");
  app.add_option("--output-device", flags.options.output_device(),
                 "dp-classic: the one of --devices that gathers the outputs "
                 "and computes the loss; the first one holds the model, its "
                 "gradients and the optimizer state")
      ->type_name("DEVICE")
      ->default_str("the first")
      ->group("Devices");
  add_choice(app, "--bad-links", flags.bad_links, {"stage", "stop", "ignore"},
             "what to do if copies between devices arrive corrupted: stage "
             "(warn, and copy through host memory), stop, or ignore (don't "
             "check)")
      ->group("Devices");
  add_output_options(app, flags);
  show_in_details(
      app, {{"Communication between ranks",
             {"--backend", "--timeout", "--zero", "--grad-compression",
              "--powersgd-rank", "--local-steps", "--outer-optimizer",
              "--outer-lr", "--outer-momentum", "--verbose-ranks"}},
            {"Bits, and what checks them",
             {"--intra-op-threads", "--verify-every", "--verify-gradients",
              "--no-verify-first-step", "--bad-links", "--show-shards"}},
            {"Loading and evaluation",
             {"--workers", "--drop-last", "--eval-every", "--no-eval",
              "--early-stop", "--save-best"}},
            {"Spikes of the loss",
             {"--on-spike", "--spike-sigma", "--spike-window"}},
            {"More about devices", {"--output-device"}},
            {"Checkpoints",
             {"--snapshot-every", "--checkpoint-every-epoch", "--keep",
              "--allow-changes"}},
            {"Records of a run",
             {"--report", "--tensorboard", "--trace-steps", "--log-every",
              "--quiet"}}});
}

training::TrainOptions to_train_options(const RunFlags& flags) {
  training::TrainOptions options = flags.options;
  options.precision(training::parse_precision(flags.precision));
  options.zero(static_cast<ZeroStage>(flags.zero));
  options.communication().compression(
      training::parse_grad_compression(flags.grad_compression));
  options.verify().bad_links(parse_bad_links(flags.bad_links));
  options.spikes().action(training::parse_on_spike(flags.on_spike));
  options.communication().outer_optimizer(
      training::parse_outer_optimizer(flags.outer_optimizer));
  options.epochs(
      flags.epochs.value_or(options.max_steps() > 0 ? 0 : options.epochs()));
  if (flags.no_eval) options.evaluation().enabled(false);
  if (flags.no_first_step_check) options.verify().steps(Verify::kNever);
  if (flags.quiet) options.log().progress(false);
  if (options.checkpoint().resume() == "auto" && options.out_dir().empty()) {
    throw BadUsage(
        "[usage] --resume auto needs --out-dir DIR, the folder of the run to "
        "continue");
  }
  if (!options.init_from().empty() && !options.checkpoint().resume().empty() &&
      options.checkpoint().resume() != "auto") {
    throw BadUsage(
        "[usage] --init-from and --resume DIR can't be used together; leave "
        "out --init-from, as --resume restores the weights");
  }
  return options;
}

}  // namespace lockstep::cli
