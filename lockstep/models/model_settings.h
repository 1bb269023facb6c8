#pragma once

#include <map>
#include <string>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// A model's description as text, for a checkpoint: {"name", "mlp"},
/// {"width", "1024"}, ...
std::map<std::string, std::string> to_settings(const ModelSpec& spec);

/// The way back. Throws InvalidArgument naming what is missing or can't be.
ModelSpec spec_from_settings(const std::map<std::string, std::string>& text);

}  // namespace lockstep::models
