#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/train/metrics.h"

namespace lockstep::training {

/// The position of a run. The metrics are the means of the epoch so far.
struct StepProgress {
  int64_t done = 0;  ///< steps, including this one
  int64_t total = 0;
  int64_t epoch = 0;
  Metrics metrics{};
  int64_t samples = 0;  ///< samples of this step
};

/// A StepProgress with the speed measured so far.
struct ProgressText {
  StepProgress step;
  double samples_per_s = 0;
  double seconds_left = 0;
  double step_s = 0;   ///< time of the last step
  double total_s = 0;  ///< time of all steps after the first
};

/// Returns "44ms", "6s679ms", "2m5s", "1h3m": at most two units.
std::string short_duration(double seconds);

/// Returns a line like
/// "step 10/157 | epoch 0 | loss 2.1034 | acc 21.56% | 812 samples/s | ...".
std::string render_line(const ProgressText& text);
/// Returns a bar at most `width` columns wide. On a narrow terminal the less
/// important fields are dropped first, then the bar.
std::string render_bar(const ProgressText& text, int width, bool is_utf8);

/// Returns the bar of an evaluation that has done some of its batches, at most
/// `width` columns wide.
std::string render_evaluation(int64_t done, int64_t total, double seconds_left,
                              int width, bool is_utf8);

enum class ProgressStyle { kBar, kLines, kNone };

/// Environment variable with the number of columns of the terminal to which a
/// launcher passes a rank's output. The rank itself writes to a pipe.
inline constexpr const char* kTerminalColumns = "LOCKSTEP_TERMINAL_COLUMNS";

/// Returns the columns of the terminal that `out` leads to; 0 if it leads to
/// none.
int terminal_columns(std::FILE* out);

/// Returns kBar if `out` leads to a terminal, else kLines.
ProgressStyle default_progress_style(std::FILE* out);

/// Shows the progress of a run: a bar that is redrawn at most ten times a
/// second, or a line every `log_every` steps and at the last one.
class Progress {
 public:
  Progress(ProgressStyle style, int64_t log_every, std::FILE* out = stdout);
  /// Erases the bar, so that later output starts on a clean line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepProgress& step);
  /// Shows that an evaluation has done `done` of `total` batches: in a bar, or
  /// in a line every ten seconds. The first call of an evaluation has 0.
  void evaluation(int64_t done, int64_t total);
  /// Prints `line` above the bar. kNone: prints nothing.
  void line(std::string_view line);
  /// Returns why nothing is shown any more: the disk behind stdout is full,
  /// say.
  const std::optional<IoError>& failure() const { return failure_; }

 private:
  void show(std::string_view text);
  void show_bar(const std::function<std::string(int width)>& render);
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
  Stopwatch since_evaluation_;  // since the latest one began
  Stopwatch since_evaluation_line_;
  // The first step is slower than the others (libraries load, memory is
  // mapped), so the speed is measured from its end.
  double first_step_end_s_ = 0;
  double last_step_end_s_ = 0;
  int64_t first_done_ = 0;
  int64_t samples_ = 0;
};

}  // namespace lockstep::training
