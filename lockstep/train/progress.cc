#include "lockstep/train/progress.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/env.h"
#include "lockstep/base/terminal.h"

namespace lockstep::train {
namespace {

constexpr double kRedrawEvery_s = 0.1;
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

// The most important first.
std::vector<std::string> fields(const ProgressText& text) {
  std::vector<std::string> fields;
  for (const auto& [name, value] : in_order(text.step.metrics)) {
    fields.push_back(metric_text(name, value));
  }
  for (auto& field :
       {whole_seconds(text.seconds), time_left(text), speed(text)}) {
    fields.push_back(field);
  }
  return fields;
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

std::string render_line(const ProgressText& text) {
  std::string line = fmt::format("step {}/{} | epoch {}", text.step.done,
                                 text.step.total, text.step.epoch);
  for (const auto& [name, value] : in_order(text.step.metrics)) {
    line += " | " + metric_text(name, value);
  }
  return line + fmt::format(" | {} | {}", speed(text), time_left(text));
}

std::string render_bar(const ProgressText& text, int width, bool is_utf8) {
  const std::string head = fmt::format("epoch {} ", text.step.epoch);
  std::string tail =
      fmt::format(" step {}/{}", text.step.done, text.step.total);
  const auto free = [&] {
    return width - static_cast<int>(head.size() + tail.size());
  };
  for (const auto& field : fields(text)) {
    if (free() < kShortestBar + static_cast<int>(field.size()) + 3) break;
    tail += " | " + field;
  }
  if (free() < kShortestBar) {
    return (head + tail).substr(0, static_cast<size_t>(std::max(width, 0)));
  }
  const auto total = static_cast<double>(std::max<int64_t>(text.step.total, 1));
  const double fraction = static_cast<double>(text.step.done) / total;
  return head + draw(fraction, std::min(free(), kLongestBar), is_utf8) + tail;
}

int terminal_columns(std::FILE* out) {
  if (is_terminal(fileno(out))) return terminal_width(fileno(out));
  const std::string text = env(kTerminalColumns).value_or("");
  int columns = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, columns);
  return error == std::errc() && rest == end ? std::max(columns, 0) : 0;
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
  since_redraw_.restart();
  // One column stays free: writing the last one wraps on some terminals.
  const int columns = terminal_columns(out_);
  const int width = (columns > 0 ? columns : kUsualColumns) - 1;
  const std::string bar = render_bar(text, width, is_utf8_);
  erase();
  fmt::print(out_, "{}", bar);
  std::fflush(out_);
  has_bar_ = true;
}

void Progress::line(std::string_view line) {
  if (style_ == ProgressStyle::kNone) return;
  erase();
  fmt::print(out_, "{}\n", line);
  std::fflush(out_);
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
  const auto remaining = static_cast<double>(step.total - step.done);
  return {.step = step,
          .samples_per_s = samples / seconds,
          .seconds_left = remaining * seconds / std::max(steps, 1.0),
          .seconds = now};
}

void Progress::erase() {
  if (!has_bar_) return;
  fmt::print(out_, "\r\x1b[2K");
  std::fflush(out_);
  has_bar_ = false;
}

}  // namespace lockstep::train
