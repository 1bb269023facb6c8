#include "lockstep/cli/data/download_progress.h"

#include <algorithm>
#include <cstdio>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/terminal.h"

namespace lockstep::cli {

DownloadProgress::DownloadProgress()
    : is_terminal_(is_terminal(STDOUT_FILENO)) {}

void DownloadProgress::begin(const std::string& name, const std::string& url) {
  end();
  fmt::print("{}\n", url);
  std::fflush(stdout);
  name_ = name;
  watch_ = Stopwatch();
  first_bytes_ = -1;
  tenths_ = 0;
}

void DownloadProgress::show(int64_t done_bytes, int64_t all_bytes) {
  if (first_bytes_ < 0) {
    first_bytes_ = done_bytes;
    tenths_ = static_cast<int>(10 * done_bytes / all_bytes);
  }
  const auto done = static_cast<double>(done_bytes);
  const auto all = static_cast<double>(all_bytes);
  const double part = done / all;
  if (!is_terminal_) {
    const int tenths = static_cast<int>(10 * part);
    if (tenths <= tenths_) return;
    tenths_ = tenths;
    fmt::print("  {} {} % of {}\n", name_, 10 * tenths, format_bytes(all));
    std::fflush(stdout);
    return;
  }
  constexpr double kBetween = 0.1;
  const bool is_whole = done_bytes == all_bytes;
  if (has_drawn_ && !is_whole && since_drawn_.seconds() < kBetween) return;
  since_drawn_ = Stopwatch();
  const double rate =
      (done - static_cast<double>(first_bytes_)) / (watch_.seconds() + 1e-6);
  std::string text = fmt::format("{:3.0f} % of {}, {}/s", 100 * part,
                                 format_bytes(all), format_bytes(rate));
  if (rate > 0 && !is_whole) {
    text += fmt::format(", {} left", format_duration((all - done) / rate));
  }
  const int room = terminal_width(STDOUT_FILENO) - 1 -
                   static_cast<int>(name_.size() + text.size()) - 7;
  const int width = std::clamp(room, 0, 30);
  const int filled = static_cast<int>(part * width);
  // Goes back to the beginning of the line, and clears the rest of the line
  // after the text.
  fmt::print("\r  {} [{:#<{}}{:{}}] {}\033[K", name_, "", filled, "",
             width - filled, text);
  std::fflush(stdout);
  has_drawn_ = true;
}

void DownloadProgress::say(const std::string& text) {
  end();
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

void DownloadProgress::end() {
  if (has_drawn_) fmt::print("\n");
  has_drawn_ = false;
}

}  // namespace lockstep::cli
