#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

/// An error in the command line. The program ends with kExitBadUsage.
class BadUsage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Checks of an option's value. A value that fails is reported as
// "--batch-size: expected a whole number of at least 1, got 'x'".

CLI::Validator whole_number(int64_t least,
                            int64_t most = std::numeric_limits<int64_t>::max());

enum class Bound { kIncluded, kExcluded };
/// Accepts a finite number of at least (or above) `least`, and below `below`.
CLI::Validator number(double least, Bound bound = Bound::kIncluded,
                      double below = std::numeric_limits<double>::infinity());

/// Accepts one of `words`. For another word, the error suggests the nearest.
CLI::Validator one_of(std::vector<std::string> words);
/// Checks that the text is one of the backends `names`, or "gloo", the former
/// name of tcp.
CLI::Validator backend_name(std::vector<std::string> names);

/// Returns the sizes in bytes that "4K:256M" stands for: from the first size to
/// the last, each `factor` times the previous one. "1M" is only that size. K, M
/// and G are powers of 1024. Throws BadUsage, naming --sizes.
std::vector<int64_t> parse_sizes(const std::string& text, int64_t factor);

}  // namespace lockstep::cli
