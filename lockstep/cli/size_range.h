#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::cli {

/// The sizes in bytes that "4K:256M" stands for: from the first, each `factor`
/// times the one before, up to the last; "1M" is that size alone. K, M and G
/// are powers of 1024. Throws BadUsage, naming --sizes.
std::vector<int64_t> parse_sizes(const std::string& text, int64_t factor);

}  // namespace lockstep::cli
