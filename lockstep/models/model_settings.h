#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/models/model.h"

namespace lockstep::models {

/// Largest size: far beyond any model, yet no product of two overflows.
inline constexpr int64_t kMaxModelSize = 1 << 24;

/// Returns a model's description as text, for a checkpoint: {"name", "mlp"},
/// {"width", "1024"}, ...
std::map<std::string, std::string> to_settings(const ModelSpec& spec);

/// Reads what to_settings() returned. Throws InvalidArgument naming a missing
/// or invalid entry.
ModelSpec spec_from_settings(const std::map<std::string, std::string>& text);

/// Return the value of `key` in such a text. Throw InvalidArgument if it is
/// missing, not a size in 0..kMaxModelSize, or not a finite number.
const std::string& setting_text(
    const std::map<std::string, std::string>& settings, const char* key);
int64_t setting_size(const std::map<std::string, std::string>& settings,
                     const char* key);
double setting_number(const std::map<std::string, std::string>& settings,
                      const char* key);

}  // namespace lockstep::models
