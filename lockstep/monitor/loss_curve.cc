#include "lockstep/monitor/loss_curve.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lockstep::monitor {
namespace {

/// A grid of dots. Each character shows several of them.
class Dots {
 public:
  Dots(int columns, int rows)
      : columns_(columns),
        rows_(rows),
        is_set_(static_cast<size_t>(columns) * static_cast<size_t>(rows)) {}

  void set(int column, int row) { is_set_[at(column, row)] = true; }
  bool is_set(int column, int row) const { return is_set_[at(column, row)]; }
  int columns() const { return columns_; }
  int rows() const { return rows_; }

 private:
  size_t at(int column, int row) const {
    return static_cast<size_t>(row) * static_cast<size_t>(columns_) +
           static_cast<size_t>(column);
  }

  int columns_, rows_;
  std::vector<bool> is_set_;
};

// The bits of a Braille character (U+2800 and on), by column and row.
constexpr uint8_t kBraille[2][4] = {{0x01, 0x02, 0x04, 0x40},
                                    {0x08, 0x10, 0x20, 0x80}};

std::string braille(const Dots& dots, int character, int line) {
  unsigned bits = 0;
  for (int column = 0; column < 2; ++column) {
    for (int row = 0; row < 4; ++row) {
      if (dots.is_set(2 * character + column, 4 * line + row)) {
        bits |= kBraille[column][row];
      }
    }
  }
  if (bits == 0) return " ";
  return {static_cast<char>(0xE2), static_cast<char>(0xA0 + (bits >> 6)),
          static_cast<char>(0x80 + (bits & 0x3F))};
}

// Draws from point to point, and fills the rows between neighbouring columns.
void draw(const std::vector<LossPoint>& points, Dots& dots) {
  const auto by_loss = [](const LossPoint& a, const LossPoint& b) {
    return a.loss < b.loss;
  };
  const auto [low, high] =
      std::minmax_element(points.begin(), points.end(), by_loss);
  const double highest = high->loss;
  const double range = std::max(highest - low->loss, 1e-12);
  const auto first = static_cast<double>(points.front().step);
  const double steps =
      std::max(static_cast<double>(points.back().step) - first, 1.0);
  const auto row_of = [&](double loss) {
    return static_cast<int>(
        std::lround((highest - loss) / range * (dots.rows() - 1)));
  };
  size_t next = 1;
  int last_row = row_of(points.front().loss);
  for (int column = 0; column < dots.columns(); ++column) {
    const double step = first + steps * column / (dots.columns() - 1);
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
    const int row = row_of(left.loss + part * (right.loss - left.loss));
    const auto [top, bottom] = std::minmax(row, last_row);
    for (int r = top; r <= bottom; ++r) dots.set(column, r);
    last_row = row;
  }
}

}  // namespace

std::vector<std::string> draw_curve(const std::vector<LossPoint>& points,
                                    int width, int height, bool is_utf8) {
  if (points.size() < 2 || width < 2 || height < 1) return {};
  Dots dots(is_utf8 ? 2 * width : width, is_utf8 ? 4 * height : height);
  draw(points, dots);
  std::vector<std::string> lines;
  for (int line = 0; line < height; ++line) {
    std::string text;
    for (int character = 0; character < width; ++character) {
      if (is_utf8) {
        text += braille(dots, character, line);
      } else {
        text += dots.is_set(character, line) ? '*' : ' ';
      }
    }
    lines.push_back(std::move(text));
  }
  return lines;
}

}  // namespace lockstep::monitor
