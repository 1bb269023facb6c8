#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/train/metrics.h"

namespace lockstep::train {

/// Where a run is. The metrics are the epoch's means so far.
struct StepProgress {
  int64_t done = 0;  ///< steps, this one included
  int64_t total = 0;
  int64_t epoch = 0;
  Metrics metrics{};
  int64_t samples = 0;  ///< of this step
};

/// What StepProgress looks like with the speed measured so far.
struct ProgressText {
  StepProgress step;
  double samples_per_s = 0;
  double seconds_left = 0;
  double step_s = 0;   ///< of the last step
  double total_s = 0;  ///< of all steps after the first
};

/// "44ms", "6s679ms", "2m5s", "1h3m": at most two units.
std::string short_duration(double seconds);

/// "step 10/157 | epoch 0 | loss 2.1034 | acc 21.56% | 812 samples/s | ...".
std::string render_line(const ProgressText& text);
/// A bar at most `width` columns wide: on a narrow terminal the less
/// important fields go first, then the bar.
std::string render_bar(const ProgressText& text, int width, bool is_utf8);

enum class ProgressStyle { kBar, kLines, kNone };

/// Tells a rank whose output its launcher passes to a terminal how many columns
/// that has: the rank itself writes to a pipe.
inline constexpr const char* kTerminalColumns = "LOCKSTEP_TERMINAL_COLUMNS";

/// Of the terminal that `out` comes to; 0 if it comes to none.
int terminal_columns(std::FILE* out);

/// A bar where `out` comes to a terminal, lines elsewhere.
ProgressStyle default_progress_style(std::FILE* out);

/// Shows how a run gets on: a bar that is redrawn at most ten times a second,
/// or a line every `log_every` steps and at the last one.
class Progress {
 public:
  Progress(ProgressStyle style, int64_t log_every, std::FILE* out = stdout);
  /// Erases the bar, so that what follows starts on a clean line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepProgress& step);
  /// Prints `line` above the bar. Nothing for kNone.
  void line(std::string_view line);
  /// Why nothing is shown any more: the disk behind stdout is full, say.
  const std::optional<IoError>& failure() const { return failure_; }

 private:
  void show(std::string_view text);
  ProgressText measure(const StepProgress& step);
  void erase();

  ProgressStyle style_;
  int64_t log_every_;
  std::FILE* out_;
  bool is_utf8_;
  bool has_bar_ = false;
  std::optional<IoError> failure_;
  Stopwatch since_start_;
  Stopwatch since_redraw_;
  // The first step is slower than the others (libraries load, memory is
  // mapped), so the speed is measured from its end.
  double first_step_end_s_ = 0;
  double last_step_end_s_ = 0;
  int64_t first_done_ = 0;
  int64_t samples_ = 0;
};

}  // namespace lockstep::train
