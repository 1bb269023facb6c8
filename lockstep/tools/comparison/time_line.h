#pragma once

#include <array>
#include <string>
#include <vector>

#include "lockstep/tools/comparison/comparison.h"

namespace lockstep::tools {

/// Kind of block in a time line, with the way it is drawn.
struct BlockKind {
  const char* name;
  const char* css_class;
  const char* utf8;
  char ascii;
  int colour;  ///< terminal colour, as in "\033[34m"
};

inline constexpr std::array<BlockKind, 8> kBlockKinds{{
    {"scatter", "scatter", "▖", 's', 33},
    {"replicate", "replicate", "▌", 'c', 31},
    {"forward", "forward", "░", 'f', 36},
    {"backward", "backward", "█", 'B', 34},
    {"all-reduce", "reduce", "▞", 'R', 35},
    {"update", "update", "▒", 'u', 32},
    // A rank sums its part of the gradients while it updates its part.
    {"sum+update", "update", "▒", 'u', 32},
    {"wait", "wait", "·", '.', 90},
}};

/// A block, in seconds since the start of the step. `kind` is an index in
/// kBlockKinds.
struct Block {
  size_t kind = 0;
  double begin_s = 0;
  double end_s = 0;

  double seconds() const { return end_s - begin_s; }
};

/// A lane of a rank. Where spans are nested, the block is the innermost one.
/// Blocks are in order and don't overlap.
struct TimeLineRow {
  int64_t rank = 0;
  std::string label;  ///< "rank 0  cpu:0"
  std::vector<Block> blocks;
};

/// A step of a run, lane by lane, for the first ranks of the run. Short blocks
/// are left out, except for communication. No rows if nothing is known.
struct TimeLine {
  std::string title;
  double seconds = 0;
  std::vector<TimeLineRow> rows;

  /// Returns the kinds that occur, in the order of kBlockKinds.
  std::vector<size_t> kinds() const;
};

TimeLine time_line_of(const ComparedRun& run);

/// Returns the time lines of the runs that have ranks (ddp).
std::vector<TimeLine> time_lines(const Comparison& comparison);

/// Communication time in seconds, as means over the ranks.
struct CommunicationTime {
  double total_s = 0;   ///< all-reduce and wait
  double wait_s = 0;    ///< part of total_s spent waiting
  double hidden_s = 0;  ///< part of total_s during which the rank computes
};
CommunicationTime communication_of(const TimeLine& line);

}  // namespace lockstep::tools
