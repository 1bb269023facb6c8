#pragma once

#include <array>
#include <string>
#include <vector>

#include "lockstep/report/comparison/comparison.h"

namespace lockstep::report {

/// What the blocks of a time line are, and how each is drawn.
struct BlockKind {
  const char* name;
  const char* css_class;
  const char* utf8;
  char ascii;
  int colour;  ///< of a terminal, as in "\033[34m"
};

inline constexpr std::array<BlockKind, 8> kBlockKinds{{
    {"scatter", "scatter", "▖", 's', 33},
    {"replicate", "replicate", "▌", 'c', 31},
    {"forward", "forward", "░", 'f', 36},
    {"backward", "backward", "█", 'B', 34},
    {"all-reduce", "reduce", "▞", 'R', 35},
    {"update", "update", "▒", 'u', 32},
    // A rank sums its part of the gradients as it updates its part.
    {"sum+update", "update", "▒", 'u', 32},
    {"wait", "wait", "·", '.', 90},
}};

/// Seconds from the begin of the step. `kind`: in kBlockKinds.
struct Block {
  size_t kind = 0;
  double begin_s = 0;
  double end_s = 0;

  double seconds() const { return end_s - begin_s; }
};

/// A lane of a rank. Of spans in each other the innermost is the block; blocks
/// don't overlap and are in order.
struct TimeLineRow {
  int64_t rank = 0;
  std::string label;  ///< "rank 0  cpu:0"
  std::vector<Block> blocks;
};

/// A step of a run, lane by lane, of its first ranks. What is not worth a word
/// is left out, but all communication is in. No rows: nothing is known.
struct TimeLine {
  std::string title;
  double seconds = 0;
  std::vector<TimeLineRow> rows;

  /// Those that occur, in the order of kBlockKinds.
  std::vector<size_t> kinds() const;
};

TimeLine time_line_of(const ComparedRun& run);

/// Those of runs with ranks: of ddp.
std::vector<TimeLine> time_lines(const Comparison& comparison);

/// Means over the ranks, seconds.
struct CommunicationTime {
  double total_s = 0;   ///< all-reduce and wait
  double wait_s = 0;    ///< of it
  double hidden_s = 0;  ///< of it, while the rank computes
};
CommunicationTime communication_of(const TimeLine& line);

}  // namespace lockstep::report
