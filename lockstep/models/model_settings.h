#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// Far beyond any model, and small enough that no product of two overflows.
inline constexpr int64_t kMostOfASize = 1 << 24;

/// A model's description as text, for a checkpoint: {"name", "mlp"},
/// {"width", "1024"}, ...
std::map<std::string, std::string> to_settings(const ModelSpec& spec);

/// The way back. Throws InvalidArgument naming what is missing or can't be.
ModelSpec spec_from_settings(const std::map<std::string, std::string>& text);

/// What such a text says under `key`. They throw InvalidArgument if there is
/// nothing, or no size of 0..kMostOfASize, or no finite number.
const std::string& setting_text(
    const std::map<std::string, std::string>& settings, const char* key);
int64_t setting_size(const std::map<std::string, std::string>& settings,
                     const char* key);
double setting_number(const std::map<std::string, std::string>& settings,
                      const char* key);

}  // namespace lockstep::models
