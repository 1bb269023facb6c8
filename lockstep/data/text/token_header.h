#pragma once

#include <cstdint>

#include "lockstep/data/text/tokens.h"

namespace lockstep::data {

/// First of the 256 int32 of llm.c's header, which determines the format.
inline constexpr int32_t kUint16Magic = 20240520;
inline constexpr int32_t kUint32Magic = 20240801;

/// Returns the second one. Not for kRawUint16, which has no header.
constexpr int32_t token_header_version(TokenFormat format) {
  return format == TokenFormat::kUint32 ? 7 : 1;
}

}  // namespace lockstep::data
