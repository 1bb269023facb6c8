#pragma once

#include <string>

#include "lockstep/base/option.h"

// Options that several commands have. They point to values that must outlive
// the app.
namespace lockstep::cli {

/// Returns the option that `lockstep train` has with this name, for another
/// value and, if it is not empty, with other help.
Option train_option(const std::string& name, const Option::Value& value,
                    const std::string& help = "");

/// Returns --precision with fp32 and bf16, the precisions that are measured.
Option measured_precision_option(const Option::Value& precision);

/// Returns --checkpoint, which must be given.
Option checkpoint_option(std::string& checkpoint);

}  // namespace lockstep::cli
