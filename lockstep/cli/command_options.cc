#include "lockstep/cli/command_options.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/train/option_table.h"

namespace lockstep::cli {

Option train_option(const std::string& name, const Option::Value& value,
                    const std::string& help) {
  training::TrainOptions usual;
  const auto table = training::option_table(usual);
  const auto found = std::ranges::find(table, name, &Option::name);
  if (found == table.end()) {
    throw InvalidArgument("usage",
                          {.code = ErrorCode::kUnknownName,
                           .what = "`lockstep train` has no option " + name});
  }
  Option option = *found;
  option.value = value;
  option.topic.clear();
  if (!help.empty()) option.help = help;
  return option;
}

Option measured_precision_option(const Option::Value& precision) {
  Option option =
      train_option("--precision", precision,
                   "fp32, or bf16: forward and loss under autocast");
  option.words = {"fp32", "bf16"};
  return option;
}

Option checkpoint_option(std::string& checkpoint) {
  return {.name = "--checkpoint",
          .value = &checkpoint,
          .help =
              "a checkpoint, the --out-dir of a run (its newest "
              "checkpoint), or a Hugging Face folder",
          .type = "DIR",
          .default_text = "required"};
}

}  // namespace lockstep::cli
