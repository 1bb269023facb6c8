#pragma once

#include <memory>

#include "lockstep/cli/model_family.h"

namespace lockstep::cli {

/// Returns the language models, with text as their data.
std::shared_ptr<ModelFamily> make_language_family();

}  // namespace lockstep::cli
