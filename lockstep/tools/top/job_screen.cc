#include "lockstep/tools/top/job_screen.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <functional>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/printable.h"
#include "lockstep/base/table.h"

namespace lockstep::monitor {
namespace {

constexpr int kBar = 10;          // columns of a device's bar
constexpr int kCurveAtLeast = 4;  // rows
constexpr int kCurveAtMost = 24;

/// A row of the table: a device of a rank.
struct Row {
  const RankStatus* rank;
  const DeviceStatus* device;
  RankNote note;
  bool is_first;  // the first row of its rank
};

std::string percent(const std::optional<double>& fraction) {
  return fraction ? fmt::format("{:.0f} %", 100 * *fraction) : "-";
}

std::string bytes(int64_t count) {
  return format_bytes(static_cast<double>(count));
}

std::string blocks(double fraction, int width, bool is_utf8) {
  const int full =
      static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * width));
  std::string text;
  for (int i = 0; i < width; ++i) {
    text += i < full ? (is_utf8 ? "█" : "#") : (is_utf8 ? "░" : ".");
  }
  return text;
}

Style style_of(RankNote note) {
  switch (note) {
    case RankNote::kLost:
      return Style::kBad;
    case RankNote::kSlow:
    case RankNote::kStale:
      return Style::kWarning;
    case RankNote::kEnded:
      return Style::kDim;
    case RankNote::kNone:
      break;
  }
  return Style::kPlain;
}

/// A column of the table. Columns of a low rank stay when the table is narrow.
struct Column {
  const char* name;
  int rank;
  bool is_right;
  std::function<std::string(const Row&)> cell;
};

std::vector<Column> columns_of(bool is_utf8) {
  const auto rank_cell = [](auto text) {
    return [text](const Row& row) {
      return row.is_first ? text(*row.rank) : std::string();
    };
  };
  return {
      {"RANK", 0, true,
       rank_cell([](const RankStatus& s) { return fmt::to_string(s.rank); })},
      {"HOST", 6, false, rank_cell([](const RankStatus& s) { return s.host; })},
      {"PID", 5, true,
       rank_cell([](const RankStatus& s) { return fmt::to_string(s.pid); })},
      {"DEVICE", 0, false, [](const Row& row) { return row.device->name; }},
      {"BUSY", 1, false,
       [is_utf8](const Row& row) {
         return blocks(row.device->busy_fraction, kBar, is_utf8);
       }},
      {"", 0, true,
       [](const Row& row) { return percent(row.device->busy_fraction); }},
      {"MEMORY", 0, true,
       [](const Row& row) { return bytes(row.device->memory_bytes); }},
      {"PEAK", 4, true,
       [](const Row& row) { return bytes(row.device->memory_peak_bytes); }},
      {"STEP", 3, true, rank_cell([](const RankStatus& s) {
         return format_duration(s.step_s);
       })},
      {"WAIT", 2, true,
       rank_cell([](const RankStatus& s) { return percent(s.wait_fraction); })},
      {"COMM", 2, true, rank_cell([](const RankStatus& s) {
         return percent(s.communication_fraction);
       })},
      {"", 0, false,
       [](const Row& row) {
         return row.is_first ? std::string(to_string(row.note)) : "";
       }},
  };
}

std::vector<Row> rows_of(const Job& job) {
  std::vector<Row> rows;
  for (size_t r = 0; r < job.ranks.size(); ++r) {
    bool is_first = true;
    for (const DeviceStatus& device : job.ranks[r].devices) {
      rows.push_back({&job.ranks[r], &device, job.notes[r],
                      std::exchange(is_first, false)});
    }
  }
  return rows;
}

std::string padded(const std::string& text, size_t width, bool is_right) {
  const size_t own = display_width(text);
  const std::string space(width > own ? width - own : 0, ' ');
  return is_right ? space + text : text + space;
}

std::vector<ScreenLine> draw_table(const std::vector<Row>& rows, int width,
                                   bool is_utf8) {
  auto columns = columns_of(is_utf8);
  std::vector<std::vector<std::string>> cells;  // by column
  std::vector<size_t> widths;
  for (const Column& column : columns) {
    cells.emplace_back();
    widths.push_back(display_width(column.name));
    for (const Row& row : rows) {
      cells.back().push_back(column.cell(row));
      widths.back() =
          std::max(widths.back(), display_width(cells.back().back()));
    }
  }
  const auto needed = [&] {
    size_t all = 0;
    for (const size_t each : widths) all += each == 0 ? 0 : each + 2;
    return all;
  };
  // The note is the last column. It takes room even if it is empty now.
  widths.back() = std::max<size_t>(widths.back(), 5);
  while (needed() > static_cast<size_t>(width) + 2) {
    size_t worst = 0;
    for (size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].rank > columns[worst].rank) worst = c;
    }
    if (columns[worst].rank == 0) break;
    columns[worst].rank = 0;
    widths[worst] = 0;
  }
  const auto line_of = [&](const auto& cell_of, Style style) {
    std::string text;
    for (size_t c = 0; c < columns.size(); ++c) {
      if (widths[c] == 0) continue;
      if (!text.empty()) text += "  ";
      text += padded(cell_of(c), widths[c], columns[c].is_right);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return ScreenLine{{text, style}};
  };
  std::vector<ScreenLine> lines;
  lines.push_back(line_of(
      [&](size_t c) { return std::string(columns[c].name); }, Style::kHeading));
  for (size_t r = 0; r < rows.size(); ++r) {
    lines.push_back(
        line_of([&](size_t c) { return cells[c][r]; }, style_of(rows[r].note)));
  }
  return lines;
}

std::vector<ScreenLine> draw_head(const Job& job, int width, bool is_utf8) {
  const RankStatus& status = job.first();
  std::vector<ScreenLine> lines;
  std::string title =
      fmt::format("lockstep top - {}, {}", status.model, status.strategy);
  if (status.world_size > 1) {
    title += fmt::format(", {} over {}", counted(status.world_size, "rank"),
                         status.backend);
  }
  const std::string clock = fmt::format(
      "{:%H:%M:%S}", fmt::localtime(static_cast<std::time_t>(job.now)));
  lines.push_back(
      {{padded(title, static_cast<size_t>(std::max(width - 9, 1)), false) + " ",
        Style::kBold},
       {clock, Style::kDim}});
  lines.push_back(
      {{fmt::format(
            "{}  {}  epoch {}  {}  up {}", job.name, to_string(status.activity),
            status.epoch, counted(status.restarts, "restart"),
            format_duration(std::max(0.0, job.now - status.started_at))),
        status.restarts > 0 ? Style::kWarning : Style::kPlain}});

  const double done = status.total_steps > 0
                          ? static_cast<double>(status.step) /
                                static_cast<double>(status.total_steps)
                          : 0;
  const std::string steps = fmt::format("step {}/{}", format_count(status.step),
                                        format_count(status.total_steps));
  std::string rest = fmt::format("{:.0f} %", 100 * done);
  const auto left = job.seconds_left();
  if (left && status.activity != Activity::kEnded) {
    rest += fmt::format("  {} left", format_duration(*left));
  }
  const int room = width - static_cast<int>(display_width(steps)) -
                   static_cast<int>(display_width(rest)) - 4;
  lines.push_back(
      {{steps + "  "},
       {room >= 8 ? blocks(done, std::min(room, 40), is_utf8) + "  " : "",
        Style::kGood},
       {rest}});
  std::string speed =
      fmt::format("{} a step  {} samples/s", format_duration(status.step_s),
                  format_count(std::llround(status.samples_per_s)));
  if (!status.losses.empty()) {
    speed += "  loss " + format_number(status.losses.back().loss);
  }
  lines.push_back({{speed}});
  return lines;
}

bool has_less_loss(const LossPoint& a, const LossPoint& b) {
  return a.loss < b.loss;
}

/// A grid of dots, by row, then by column. Each character shows several dots.
using Dots = std::vector<std::vector<bool>>;

// The bits of a Braille character (U+2800 and on), by column and row.
constexpr uint8_t kBraille[2][4] = {{0x01, 0x02, 0x04, 0x40},
                                    {0x08, 0x10, 0x20, 0x80}};

std::string braille(const Dots& dots, size_t character, size_t line) {
  unsigned bits = 0;
  for (size_t column = 0; column < 2; ++column) {
    for (size_t row = 0; row < 4; ++row) {
      if (dots[4 * line + row][2 * character + column]) {
        bits |= kBraille[column][row];
      }
    }
  }
  if (bits == 0) return " ";
  return {static_cast<char>(0xE2), static_cast<char>(0xA0 + (bits >> 6)),
          static_cast<char>(0x80 + (bits & 0x3F))};
}

// Draws from point to point, and fills the rows between neighbouring columns.
void draw_points(const std::vector<LossPoint>& points, Dots& dots) {
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(), has_less_loss);
  const double highest = high->loss;
  const double range = std::max(highest - low->loss, 1e-12);
  const auto first = static_cast<double>(points.front().step);
  const double steps =
      std::max(static_cast<double>(points.back().step) - first, 1.0);
  const auto rows = static_cast<double>(dots.size());
  const size_t columns = dots.front().size();
  const auto row_of = [&](double loss) {
    return static_cast<size_t>(
        std::lround((highest - loss) / range * (rows - 1)));
  };
  size_t next = 1;
  size_t last_row = row_of(points.front().loss);
  for (size_t column = 0; column < columns; ++column) {
    const double step = first + steps * static_cast<double>(column) /
                                    static_cast<double>(columns - 1);
    while (next + 1 < points.size() &&
           static_cast<double>(points[next].step) < step) {
      ++next;
    }
    const LossPoint& left = points[next - 1];
    const LossPoint& right = points[next];
    const double part = std::clamp(
        (step - static_cast<double>(left.step)) /
            std::max<double>(static_cast<double>(right.step - left.step), 1),
        0.0, 1.0);
    const size_t row = row_of(left.loss + part * (right.loss - left.loss));
    const auto [top, bottom] = std::minmax(row, last_row);
    for (size_t r = top; r <= bottom; ++r) dots[r][column] = true;
    last_row = row;
  }
}

/// Returns the curve of `points` in `height` rows of `width` characters, from
/// the top. A Braille character shows two by four dots; ASCII uses '*'. Returns
/// nothing for fewer than two points.
std::vector<std::string> draw_curve(const std::vector<LossPoint>& points,
                                    int width, int height, bool is_utf8) {
  if (points.size() < 2 || width < 2 || height < 1) return {};
  const auto rows = static_cast<size_t>(height);
  const auto columns = static_cast<size_t>(width);
  Dots dots(is_utf8 ? 4 * rows : rows,
            std::vector<bool>(is_utf8 ? 2 * columns : columns));
  draw_points(points, dots);
  std::vector<std::string> lines;
  for (size_t line = 0; line < rows; ++line) {
    std::string text;
    for (size_t character = 0; character < columns; ++character) {
      if (is_utf8) {
        text += braille(dots, character, line);
      } else {
        text += dots[line][character] ? '*' : ' ';
      }
    }
    lines.push_back(std::move(text));
  }
  return lines;
}

std::vector<ScreenLine> draw_losses(const RankStatus& status, int width,
                                    int height, bool is_utf8) {
  const auto& losses = status.losses;
  const auto [low, high] =
      std::minmax_element(losses.begin(), losses.end(), has_less_loss);
  const std::string top = fmt::format("{:.4g}", high->loss);
  const std::string bottom = fmt::format("{:.4g}", low->loss);
  const size_t scale = std::max(top.size(), bottom.size());
  const auto curve = draw_curve(losses, width - static_cast<int>(scale) - 1,
                                height - 1, is_utf8);
  std::vector<ScreenLine> lines;
  lines.push_back({{fmt::format("LOSS of steps {} to {}", losses.front().step,
                                losses.back().step),
                    Style::kHeading}});
  for (size_t i = 0; i < curve.size(); ++i) {
    const std::string label = i == 0                  ? top
                              : i + 1 == curve.size() ? bottom
                                                      : "";
    lines.push_back({{padded(label, scale, true) + " ", Style::kDim},
                     {curve[i], Style::kGood}});
  }
  return lines;
}

/// Returns `text` cut to at most `width` columns.
std::string cut(const std::string& text, int width) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (begins && ++columns > static_cast<size_t>(std::max(width, 0))) {
      return text.substr(0, i);
    }
  }
  return text;
}

/// Cuts `lines` to `width` columns and `height` rows, and converts them to
/// ASCII unless `is_utf8`.
void cut_lines(std::vector<ScreenLine>& lines, int width, int height,
               bool is_utf8) {
  if (lines.size() > static_cast<size_t>(std::max(height, 0))) {
    lines.resize(static_cast<size_t>(std::max(height, 0)));
  }
  for (ScreenLine& line : lines) {
    int left = width;
    for (Piece& piece : line) {
      if (!is_utf8) piece.text = printable_ascii(std::move(piece.text));
      piece.text = cut(piece.text, left);
      left -= static_cast<int>(display_width(piece.text));
    }
  }
}

std::string keys(const std::vector<Job>& jobs, const View& view,
                 bool has_more_rows) {
  std::string text = "q quit";
  if (has_more_rows) text += "  up/down scroll";
  if (jobs.size() > 1) {
    text += fmt::format("  tab next job ({} of {})", view.job + 1, jobs.size());
  }
  return text;
}

}  // namespace

std::vector<ScreenLine> draw_jobs(const std::vector<Job>& jobs, View& view,
                                  int width, int height) {
  std::vector<ScreenLine> lines;
  if (jobs.empty()) {
    lines = {{{"lockstep top", Style::kBold}},
             {{"None of your jobs is running on this host."}},
             {{"`lockstep top DIR` shows the run in a folder (--out-dir)."}},
             {{"q quit", Style::kDim}}};
    cut_lines(lines, width, height, view.is_utf8);
    return lines;
  }
  view.job %= jobs.size();
  const Job& job = jobs[view.job];
  lines = draw_head(job, width, view.is_utf8);
  lines.emplace_back();

  const auto rows = rows_of(job);
  const auto table = draw_table(rows, width, view.is_utf8);
  // Subtracts the lines above, the header of the table, and the keys.
  const int free = height - static_cast<int>(lines.size()) - 2;
  const int all = static_cast<int>(rows.size());
  const int shown = std::clamp(all, 0, std::max(free, 0));
  view.first_row =
      std::min(view.first_row, static_cast<size_t>(std::max(all - shown, 0)));
  lines.push_back(table.front());
  const auto first = table.begin() + 1 + static_cast<ptrdiff_t>(view.first_row);
  lines.insert(lines.end(), first, first + shown);

  const int curve_rows = std::min(free - shown - 1, kCurveAtMost);
  if (job.first().losses.size() > 1 && curve_rows >= kCurveAtLeast) {
    lines.emplace_back();
    const auto curve =
        draw_losses(job.first(), width, curve_rows, view.is_utf8);
    lines.insert(lines.end(), curve.begin(), curve.end());
  }
  while (static_cast<int>(lines.size()) + 1 < height) lines.emplace_back();
  lines.push_back({{keys(jobs, view, shown < all), Style::kDim}});
  cut_lines(lines, width, height, view.is_utf8);
  return lines;
}

std::string plain_text(const std::vector<ScreenLine>& lines) {
  std::string text;
  for (const ScreenLine& line : lines) {
    std::string joined;
    for (const Piece& piece : line) joined += piece.text;
    joined.erase(joined.find_last_not_of(' ') + 1);
    text += joined + "\n";
  }
  return text;
}

}  // namespace lockstep::monitor
