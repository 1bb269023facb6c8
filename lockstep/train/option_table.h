#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/train/train_options.h"

// The options of a training run, each in one place. The command line, the keys
// of config.json, the checks and the settings in checkpoints are made from
// these tables.
namespace lockstep::training {

/// Returns a row for each option of a run, except for the devices. An option
/// that only C++ has is named without dashes. The rows point into `options`.
/// Option::range and Option::changes_bits are those for the current values of
/// the other options.
std::vector<Option> option_table(TrainOptions& options);

/// Returns the value of an option for a stage of ZeRO, by its number.
TextValue stage_value(ZeroStage& stage);

/// Two options that a run can't have together, or an option that needs another
/// one. The names are those of rows, and a value may follow: "--strategy ddp".
struct Conflict {
  enum class Kind { kExcludes, kNeeds };
  const char* option;
  Kind kind;
  const char* other;
  bool (*is_met)(const TrainOptions& options);
  const char* why;
  const char* fix;
};

std::span<const Conflict> conflicts();

/// Throws InvalidArgument, which names the option, for a number that is out of
/// range and for a conflict. Checks everything except the devices and the
/// ranks, so it can be called before there are any.
void check_options(const TrainOptions& options);

}  // namespace lockstep::training
