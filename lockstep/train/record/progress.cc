#include "lockstep/train/record/progress.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/format.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/output.h"
#include "lockstep/base/terminal.h"

namespace lockstep::training {
namespace {

constexpr double kRedrawEvery_s = 0.1;
constexpr double kEvaluationLineEvery_s = 10;
constexpr int kLongestBar = 30;
constexpr int kShortestBar = 8;
constexpr int kUsualColumns = 80;

std::string speed(const ProgressText& text) {
  return format_count(std::llround(text.samples_per_s)) + " samples/s";
}

std::string whole_seconds(double seconds) {
  return seconds < 59.5 ? fmt::format("{:.0f} s", seconds)
                        : format_duration(seconds);
}

std::string time_left(const ProgressText& text) {
  return whole_seconds(text.seconds_left) + " left";
}

struct Field {
  int importance;  // the greatest are dropped first if there is no room
  std::string text;
};

// Returns the fields in the order in which they are shown.
std::vector<Field> fields(const ProgressText& text) {
  std::vector<Field> fields = {{1, "Step: " + short_duration(text.step_s)},
                               {2, "Tot: " + short_duration(text.total_s)}};
  int importance = 0;  // importance of the loss
  for (const auto& [name, value] : loss_first(text.step.metrics)) {
    fields.push_back({importance, metric_text(name, value)});
    importance = 3;
  }
  fields.push_back({4, time_left(text)});
  fields.push_back({5, speed(text)});
  return fields;
}

// Returns the fields for which there is room, the most important first.
std::string fitting_fields(const ProgressText& text, int room) {
  const std::vector<Field> all = fields(text);
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return all[a].importance < all[b].importance;
  });
  constexpr int kSeparator = 3;
  std::vector<bool> is_shown(all.size());
  for (const size_t i : order) {
    room -= static_cast<int>(all[i].text.size()) + kSeparator;
    if (room < 0) break;
    is_shown[i] = true;
  }
  std::string shown;
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_shown[i]) shown += " | " + all[i].text;
  }
  return shown;
}

std::string draw(double fraction, int width, bool is_utf8) {
  const int full = std::clamp(static_cast<int>(fraction * width), 0, width);
  std::string bar;
  for (int column = 0; column < width; ++column) {
    if (is_utf8) {
      bar += column < full ? "━" : "╌";
    } else {
      bar += column < full ? '=' : '.';
    }
  }
  return bar;
}

}  // namespace

std::string short_duration(double seconds) {
  const auto ms = static_cast<int64_t>(std::llround(seconds * 1000));
  const int64_t s = ms / 1000, min = s / 60, h = min / 60;
  if (h > 0) return fmt::format("{}h{}m", h, min % 60);
  if (min > 0) return fmt::format("{}m{}s", min, s % 60);
  if (s > 0) return fmt::format("{}s{}ms", s, ms % 1000);
  return fmt::format("{}ms", ms);
}

std::string render_line(const ProgressText& text) {
  std::string line = fmt::format("step {}/{} | epoch {}", text.step.done,
                                 text.step.total, text.step.epoch);
  for (const auto& [name, value] : loss_first(text.step.metrics)) {
    line += " | " + metric_text(name, value);
  }
  return line + fmt::format(" | {} | {}", speed(text), time_left(text));
}

std::string render_bar(const ProgressText& text, int width, bool is_utf8) {
  const std::string head = fmt::format("epoch {} ", text.step.epoch);
  std::string tail = fmt::format(" {}/{}", text.step.done, text.step.total);
  const auto free = [&] {
    return width - static_cast<int>(head.size() + tail.size());
  };
  tail += fitting_fields(text, free() - kShortestBar);
  if (free() < kShortestBar) {
    return (head + tail).substr(0, static_cast<size_t>(std::max(width, 0)));
  }
  const auto total = static_cast<double>(std::max<int64_t>(text.step.total, 1));
  const double fraction = static_cast<double>(text.step.done) / total;
  return head + draw(fraction, std::min(free(), kLongestBar), is_utf8) + tail;
}

std::string render_evaluation(int64_t done, int64_t total, double seconds_left,
                              int width, bool is_utf8) {
  const std::string head = "evaluation";
  std::string tail = fmt::format(" {}/{}", done, total);
  if (done > 0) tail += fmt::format(" | {} left", whole_seconds(seconds_left));
  const int free = width - static_cast<int>(head.size() + 1 + tail.size());
  if (free < kShortestBar) {
    return (head + tail).substr(0, static_cast<size_t>(std::max(width, 0)));
  }
  const double fraction = static_cast<double>(done) /
                          static_cast<double>(std::max<int64_t>(total, 1));
  return head + " " + draw(fraction, std::min(free, kLongestBar), is_utf8) +
         tail;
}

int terminal_columns(std::FILE* out) {
  if (is_terminal(fileno(out))) return terminal_width(fileno(out));
  const auto columns = parse_number<int>(env(kTerminalColumns).value_or(""));
  return std::max(columns.value_or(0), 0);
}

ProgressStyle default_progress_style(std::FILE* out) {
  return terminal_columns(out) > 0 ? ProgressStyle::kBar
                                   : ProgressStyle::kLines;
}

Progress::Progress(ProgressStyle style, int64_t log_every, std::FILE* out)
    : style_(style),
      log_every_(std::max<int64_t>(log_every, 1)),
      out_(out),
      is_utf8_(locale_is_utf8()) {}

Progress::~Progress() { erase(); }

void Progress::step(const StepProgress& step) {
  const ProgressText text = measure(step);
  const bool is_last = step.done == step.total;
  if (style_ == ProgressStyle::kLines) {
    if (is_last || step.done % log_every_ == 0) line(render_line(text));
    return;
  }
  if (style_ != ProgressStyle::kBar) return;
  if (has_bar_ && !is_last && since_redraw_.seconds() < kRedrawEvery_s) return;
  show_bar([&](int width) { return render_bar(text, width, is_utf8_); });
}

void Progress::evaluation(int64_t done, int64_t total) {
  if (done == 0) {
    since_evaluation_.restart();
    since_evaluation_line_.restart();
  }
  const double seconds_left = since_evaluation_.seconds() *
                              static_cast<double>(total - done) /
                              static_cast<double>(std::max<int64_t>(done, 1));
  if (style_ == ProgressStyle::kLines) {
    if (since_evaluation_line_.seconds() < kEvaluationLineEvery_s) return;
    since_evaluation_line_.restart();
    line(fmt::format("evaluation {}/{} | {} left", done, total,
                     whole_seconds(seconds_left)));
  }
  if (style_ != ProgressStyle::kBar) return;
  if (done > 0 && since_redraw_.seconds() < kRedrawEvery_s) return;
  show_bar([&](int width) {
    return render_evaluation(done, total, seconds_left, width, is_utf8_);
  });
}

void Progress::show_bar(const std::function<std::string(int width)>& render) {
  since_redraw_.restart();
  // The last column stays free, because writing to it wraps on some terminals.
  const int columns = terminal_columns(out_);
  const std::string bar = render((columns > 0 ? columns : kUsualColumns) - 1);
  erase();
  show(bar);
  has_bar_ = true;
  note_unfinished_line();
}

void Progress::line(std::string_view line) {
  if (style_ == ProgressStyle::kNone) return;
  erase();
  show(fmt::format("{}\n", line));
}

void Progress::show(std::string_view text) {
  if (failure_) return;
  try {
    write_now(out_, text);
  } catch (const IoError& error) {
    failure_ = error;
  }
}

ProgressText Progress::measure(const StepProgress& step) {
  const double now = since_start_.seconds();
  double samples = 0;
  double seconds = 0;
  double steps = 0;
  if (first_done_ == 0) {
    first_done_ = step.done;
    first_step_end_s_ = now;
    samples = static_cast<double>(step.samples);
    seconds = now;
    steps = 1;
  } else {
    samples_ += step.samples;
    samples = static_cast<double>(samples_);
    seconds = now - first_step_end_s_;
    steps = static_cast<double>(step.done - first_done_);
  }
  seconds = std::max(seconds, 1e-9);
  const double step_s = now - last_step_end_s_;
  last_step_end_s_ = now;
  const auto remaining = static_cast<double>(step.total - step.done);
  return {.step = step,
          .samples_per_s = samples / seconds,
          .seconds_left = remaining * seconds / std::max(steps, 1.0),
          .step_s = step_s,
          .total_s = now - first_step_end_s_};
}

void Progress::erase() {
  if (!has_bar_) return;
  show("\r\x1b[2K");
  has_bar_ = false;
}

}  // namespace lockstep::training
