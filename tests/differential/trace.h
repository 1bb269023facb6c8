#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

namespace lockstep::differential {

/// Observed results of a run, in order, up to its end or an exception.
struct Trace {
  struct Entry {
    std::string label;
    torch::Tensor value;  ///< a copy; undefined: there was nothing
    /// False: a number whose bits depend on who computed it.
    bool has_fixed_bits = true;
  };
  std::vector<Entry> entries;
  std::string error;  ///< "": none
  size_t events = 0;  ///< that were done

  void add(const std::string& label, const torch::Tensor& value,
           bool has_fixed_bits = true);
  void add(const std::string& label, double value, bool has_fixed_bits = true);
};

/// The first entry in which `got` is not `expected`, in words. Entries after
/// an exception in either are not compared. A `tolerance` is relative to the
/// largest value of an entry, but at least to 1; without one the bits must be
/// the same.
std::optional<std::string> difference(const Trace& got, const Trace& expected,
                                      std::optional<double> tolerance);

}  // namespace lockstep::differential
