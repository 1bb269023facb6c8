#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/data/images/image.h"

namespace lockstep::data {
namespace {

constexpr int kWeightBits = 22;
constexpr int64_t kOne = int64_t{1} << kWeightBits;

/// The old pixels that make up a new one: those from `first` on, with
/// `weights`.
struct Window {
  int64_t first = 0;
  std::vector<int64_t> weights;

  int64_t end() const { return first + static_cast<int64_t>(weights.size()); }
};

/// Returns the window of new pixel `at` when `from` old pixels become `to`.
Window window_of(int64_t at, int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double reach = std::max(scale, 1.0);
  const double middle = (static_cast<double>(at) + 0.5) * scale;
  const auto first =
      std::max<int64_t>(static_cast<int64_t>(middle - reach + 0.5), 0);
  const auto end = std::min(static_cast<int64_t>(middle + reach + 0.5), from);
  std::vector<double> parts;
  double sum = 0;
  for (int64_t x = first; x < end; ++x) {
    const double distance = (static_cast<double>(x) - middle + 0.5) / reach;
    parts.push_back(std::max(1.0 - std::abs(distance), 0.0));
    sum += parts.back();
  }
  Window window{.first = first};
  for (const double part : parts) {
    window.weights.push_back(
        static_cast<int64_t>(part / sum * static_cast<double>(kOne) + 0.5));
  }
  return window;
}

/// Returns the windows of the new pixels that are kept: `side` in the middle of
/// `to`.
std::vector<Window> windows_of(int64_t from, int64_t to, int64_t side) {
  // Half of an odd rest is rounded to an even number, as by Python's round().
  const int64_t rest = to - side;
  const int64_t cut = rest / 2 + (rest % 4 == 3 ? 1 : 0);
  std::vector<Window> windows;
  for (int64_t x = 0; x < side; ++x) {
    windows.push_back(window_of(cut + x, from, to));
  }
  return windows;
}

/// Returns the weighted sum of bytes that are `stride` apart.
uint8_t sum_of(const Window& window, const uint8_t* bytes, int64_t stride) {
  int64_t sum = kOne / 2;
  for (const int64_t weight : window.weights) {
    sum += weight * *bytes;
    bytes += stride;
  }
  return static_cast<uint8_t>(std::clamp<int64_t>(sum >> kWeightBits, 0, 255));
}

}  // namespace

void fit_image(const Image& image, int64_t side, std::span<uint8_t> out) {
  const int64_t shorter = std::min(image.width, image.height);
  const auto resized = [&](int64_t length) {
    return length == shorter
               ? side
               : static_cast<int64_t>(static_cast<double>(side * length) /
                                      static_cast<double>(shorter));
  };
  const auto across = windows_of(image.width, resized(image.width), side);
  const auto down = windows_of(image.height, resized(image.height), side);

  // Across, in the rows that the next pass needs: (row, x, channel).
  const int64_t top = down.front().first;
  const int64_t rows = down.back().end() - top;
  std::vector<uint8_t> narrow(static_cast<size_t>(rows * side * 3));
  uint8_t* to = narrow.data();
  for (int64_t y = top; y < top + rows; ++y) {
    const uint8_t* row = image.pixels.data() + y * image.width * 3;
    for (const Window& window : across) {
      for (int64_t c = 0; c < 3; ++c) {
        *to++ = sum_of(window, row + window.first * 3 + c, 3);
      }
    }
  }

  for (int64_t c = 0; c < 3; ++c) {
    uint8_t* plane = out.data() + c * side * side;
    for (int64_t y = 0; y < side; ++y) {
      const Window& window = down[static_cast<size_t>(y)];
      const uint8_t* first =
          narrow.data() + (window.first - top) * side * 3 + c;
      for (int64_t x = 0; x < side; ++x) {
        plane[y * side + x] = sum_of(window, first + x * 3, side * 3);
      }
    }
  }
}

}  // namespace lockstep::data
