#include "lockstep/tools/measurement/comparison_rounds.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/format.h"

namespace lockstep::tools {
namespace {

constexpr size_t kMaxNamed = 2;

// Returns true if a user wants to know which of the two runs is faster.
bool is_compared(const Comparison& comparison, size_t run, size_t other) {
  const ComparedRun& second = comparison.runs[other];
  if (run == other || comparison.runs[run].engine == kPyTorch) return false;
  return comparison.baseline == other ||
         (second.engine == kPyTorch && !second.is_ideal());
}

// Returns "dp or single is faster (0.97 to 1.06 times)" for each open verdict.
std::vector<std::string> open_verdicts(const Comparison& comparison) {
  std::vector<std::string> open;
  for (size_t run = 0; run < comparison.runs.size(); ++run) {
    for (size_t other = 0; other < comparison.runs.size(); ++other) {
      if (!is_compared(comparison, run, other)) continue;
      const SpeedRatio ratio = speed_over(
          comparison.runs[run], comparison.runs[other], comparison.confidence);
      if (ratio.is_clear()) continue;
      open.push_back(fmt::format(
          "{} or {} is faster ({} times)", comparison.runs[run].label(),
          comparison.runs[other].label(), interval_text(ratio)));
    }
  }
  return open;
}

std::string why_more(const std::vector<std::string>& open, int64_t rounds,
                     int64_t more) {
  std::string text = fmt::format("after {} it is not clear whether ",
                                 counted(rounds, "round"));
  for (size_t i = 0; i < std::min(open.size(), kMaxNamed); ++i) {
    text += (i > 0 ? ", " : "") + open[i];
  }
  if (open.size() > kMaxNamed) {
    text += fmt::format(", and {} more", open.size() - kMaxNamed);
  }
  return text + ": " + counted(more, "more round");
}

}  // namespace

std::string Contender::label() const {
  ComparedRun run{.engine = engine};
  run.report.strategy = strategy;
  return run.label();
}

Comparison measure_rounds(const std::vector<Contender>& contenders,
                          const RoundLimits& limits,
                          const MeasureRound& measure, const GoesOn& goes_on) {
  const std::vector<int64_t> verdicts =
      verdict_rounds(limits.least, limits.most);
  std::vector<std::vector<Measurement>> measured(contenders.size());
  Comparison comparison;
  comparison.confidence = confidence_of_verdict(verdicts.size());
  if (limits.most > 1) measure(0, 0);
  int64_t round = 0;
  for (const int64_t look : verdicts) {
    while (round < look) {
      ++round;
      for (size_t i = 0; i < contenders.size(); ++i) {
        const size_t at =
            (static_cast<size_t>(round - 1) + i) % contenders.size();
        measured[at].push_back(measure(at, round));
      }
    }
    comparison.rounds = round;
    comparison.runs.clear();
    for (size_t i = 0; i < contenders.size(); ++i) {
      comparison.runs.push_back(pool(contenders[i].engine, measured[i]));
    }
    relate(comparison);
    if (look == verdicts.back()) break;
    const std::vector<std::string> open = open_verdicts(comparison);
    if (open.empty()) break;
    const int64_t next =
        *std::upper_bound(verdicts.begin(), verdicts.end(), look);
    goes_on(why_more(open, round, next - round));
  }
  return comparison;
}

}  // namespace lockstep::tools
