#include "lockstep/cli/embed/run_flags.h"

#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/config_file.h"
#include "lockstep/train/option_table.h"

namespace lockstep::cli {

bool is_given(const CLI::App& app, const std::string& option) {
  return app.count(option) > 0;
}

training::Strategy choose_strategy(bool has_ranks, size_t devices) {
  if (has_ranks) return training::Strategy::kDistributed;
  return devices > 1 ? training::Strategy::kDataParallel
                     : training::Strategy::kSingle;
}

void add_run_options(CLI::App& app, RunFlags& flags) {
  flags.app = &app;
  add_config_option(app, "A run writes its options to OUT_DIR/config.json");
  add_options(app, device_options(flags.devices,
                                  "single: the first GPU, or cpu; dp, ddp: "
                                  "all"));
  auto rows = training::option_table(flags.options);
  std::erase_if(rows, [](const Option& row) {
    return !row.name.starts_with("--");  // only in C++
  });
  add_options(app, rows);
  add_options(app, rank_options(flags.ranks));
  add_options(
      app,
      {{.name = "--verbose-ranks",
        .value = &flags.is_verbose,
        .help = "ddp: print a line for each rank: its device and its part of "
                "the batch",
        .topic = "Communication between ranks"},
       {.name = "--report",
        .value = &flags.report,
        .help = "also write run.json here",
        .type = "PATH",
        .default_text = "none",
        .topic = "Records of a run"},
       {.name = "--quiet",
        .value = &flags.quiet,
        .help = "print only warnings and errors",
        .topic = "Records of a run"}});
}

training::TrainOptions to_train_options(const RunFlags& flags) {
  training::TrainOptions options = flags.options;
  // As many epochs as the steps need.
  if (!is_given(*flags.app, "--epochs") && options.max_steps() > 0) {
    options.epochs(0);
  }
  if (flags.quiet) options.log().progress(false);
  return options;
}

}  // namespace lockstep::cli
