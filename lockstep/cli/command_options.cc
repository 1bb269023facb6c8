#include "lockstep/cli/command_options.h"

#include "lockstep/cli/start/add_option.h"

namespace lockstep::cli {

void add_precision_option(CLI::App& app, std::string& precision) {
  add_choice(app, "--precision", precision, {"fp32", "bf16"},
             "fp32, or bf16: forward and loss under autocast");
}

void add_checkpoint_option(CLI::App& app, std::string& checkpoint) {
  add_path(app, "--checkpoint", checkpoint,
           "a checkpoint, the --out-dir of a run (its newest checkpoint), or a "
           "Hugging Face folder",
           "DIR")
      ->default_str("required");
}

}  // namespace lockstep::cli
