#pragma once

#include <string>
#include <vector>

#include "lockstep/report/comparison.h"

namespace lockstep::report {

/// A titled table, before it is drawn as text or as HTML.
struct Section {
  std::string title;
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

/// Practical 5, part 3: step time and its spread, total time, speed-up with its
/// interval, samples/s.
Section set_up_section(const Comparison& comparison);
/// Parts 2, 4 and 5: of each device its samples, memory peak and busy time,
/// and the memory that all devices share. No rows where nothing is known.
Section device_section(const Comparison& comparison);
/// Where the time of the mean step goes: a row a phase, a column a run, and
/// rows for what is in no phase and for their sum, the step. `bar_width`:
/// columns of the bar behind each percentage.
Section phase_section(const Comparison& comparison, int bar_width);
/// How many times as fast each run is as PyTorch's. No rows without PyTorch.
Section ratio_section(const Comparison& comparison);

/// "mlp (6,308,874 parameters), batch of 64, 2 devices".
std::string headline(const Comparison& comparison);
/// "3 rounds of 30 steps (5 to warm up), pooled, a fresh process each; ...".
std::string method(const Comparison& comparison);

/// Sentences that say what the tables show: whether the speed-up is
/// proportional, which device is fuller and by how much, where the time goes.
std::vector<std::string> reading(const Comparison& comparison);

}  // namespace lockstep::report
