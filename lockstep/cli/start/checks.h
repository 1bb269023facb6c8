#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::cli {

/// An error in the command line. The program ends with kExitBadUsage.
class BadUsage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Returns the sizes in bytes that "4K:256M" stands for: from the first size to
/// the last, each `factor` times the previous one. "1M" is only that size. K, M
/// and G are powers of 1024. Throws BadUsage, naming --sizes.
std::vector<int64_t> parse_sizes(const std::string& text, int64_t factor);

}  // namespace lockstep::cli
