#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/random_stream.h"

namespace lockstep::data {
namespace {

constexpr int kFigureClasses = 10;
constexpr int kSide = 32;
constexpr int kPlane = kSide * kSide;
constexpr int kFigureBytes = 3 * kPlane;

// All of the following is integer arithmetic, in sixteenths of a pixel. With
// floating point, the bytes would depend on the compiler and the machine.
constexpr int kUnit = 16;

enum class Shape {
  kDisk,
  kRing,
  kSquare,
  kFrame,
  kTriangle,
  kPlus,
  kCross,
  kHorizontal,
  kVertical,
  kCheckers
};

using Colour = std::array<int, 3>;

struct Figure {
  Shape shape;
  int radius;
  int period;  ///< period of stripes and checkers
  int phase_u;
  int phase_v;
};

bool is_odd_stripe(int at, int phase, int period) {
  // Kept positive, since division rounds toward zero and would widen the
  // middle.
  return (at + phase + 64 * period) / (period / 2) % 2 != 0;
}

// Returns true if the point (u, v) from the middle, v downwards, is in the
// figure.
bool covers(const Figure& figure, int u, int v) {
  const int r = figure.radius;
  const int square = u * u + v * v;
  const int across = std::abs(u);
  const int along = std::abs(v);
  const int larger = std::max(across, along);
  switch (figure.shape) {
    case Shape::kDisk:
      return square < r * r;
    case Shape::kRing:
      return square < r * r && 64 * square > 25 * r * r;
    case Shape::kSquare:
      return 8 * larger < 7 * r;
    case Shape::kFrame:
      return 8 * larger < 7 * r && 2 * larger > r;
    case Shape::kTriangle:
      return 4 * along < 3 * r && 20 * across < 3 * (4 * v + 3 * r);
    case Shape::kPlus:
      return larger < r && 4 * std::min(across, along) < r;
    case Shape::kCross:
      return 5 * larger < 4 * r && 3 * std::abs(across - along) < r;
    case Shape::kHorizontal:
      return square < r * r && is_odd_stripe(v, figure.phase_v, figure.period);
    case Shape::kVertical:
      return square < r * r && is_odd_stripe(u, figure.phase_u, figure.period);
    case Shape::kCheckers:
      return square < r * r &&
             is_odd_stripe(u, figure.phase_u, figure.period) !=
                 is_odd_stripe(v, figure.phase_v, figure.period);
  }
  return false;
}

Colour random_colour(RandomStream& random, int64_t darkest, int64_t brightest) {
  Colour colour{};
  for (int& part : colour) {
    part = static_cast<int>(random.between(darkest, brightest));
  }
  return colour;
}

int brightness(const Colour& colour) {
  return colour[0] + colour[1] + colour[2];
}

// Returns a colour that is brighter than the ground. If it were darker as
// often, the pixels of a class would average to grey, and a multi-layer
// perceptron would take very long to learn anything.
Colour ink_on(RandomStream& random, const Colour& ground) {
  constexpr int kLeastContrast = 220;
  while (true) {
    const Colour colour = random_colour(random, 80, 255);
    if (brightness(colour) - brightness(ground) >= kLeastContrast) {
      return colour;
    }
  }
}

Figure random_figure(RandomStream& random, int label) {
  Figure figure{};
  figure.shape = static_cast<Shape>(label);
  const bool is_pattern = figure.shape >= Shape::kHorizontal;
  const int least = is_pattern ? 9 : 7;
  figure.radius = static_cast<int>(random.between(least * kUnit, 12 * kUnit));
  figure.period = static_cast<int>(random.between(4 * kUnit, 7 * kUnit));
  figure.phase_u = static_cast<int>(random.below(figure.period));
  figure.phase_v = static_cast<int>(random.below(figure.period));
  return figure;
}

// Returns how many of 4 points of each pixel the figure covers.
std::array<int, kPlane> draw(RandomStream& random, const Figure& figure) {
  constexpr int kShift = 4 * kUnit;
  const int middle_x =
      kSide * kUnit / 2 + static_cast<int>(random.between(-kShift, kShift));
  const int middle_y =
      kSide * kUnit / 2 + static_cast<int>(random.between(-kShift, kShift));
  // A rotation by 2 atan(t / 64), at most 14 degrees, in 4096ths.
  const int t = static_cast<int>(random.between(-8, 8));
  const int scale = 64 * 64 + t * t;
  const int cosine = 4096 * (64 * 64 - t * t) / scale;
  const int sine = 4096 * (2 * 64 * t) / scale;
  std::array<int, kPlane> cover{};
  for (int i = 0; i < 4 * kPlane; ++i) {
    const int sub_x = i % (2 * kSide);
    const int sub_y = i / (2 * kSide);
    const int x = sub_x * (kUnit / 2) + kUnit / 4 - middle_x;
    const int y = sub_y * (kUnit / 2) + kUnit / 4 - middle_y;
    const int u = (cosine * x + sine * y) >> 12;
    const int v = (cosine * y - sine * x) >> 12;
    const int pixel = sub_y / 2 * kSide + sub_x / 2;
    cover[static_cast<size_t>(pixel)] += covers(figure, u, v) ? 1 : 0;
  }
  return cover;
}

// Paints small blots of other colours, next to the figure or over it.
void blot(RandomStream& random, std::array<Colour, kPlane>& image) {
  for (int64_t left = random.below(3); left > 0; --left) {
    const Colour colour = random_colour(random, 0, 255);
    const int width = static_cast<int>(random.between(2, 4));
    const int height = static_cast<int>(random.between(2, 4));
    const int x0 = static_cast<int>(random.below(kSide - width));
    const int y0 = static_cast<int>(random.below(kSide - height));
    for (int y = y0; y < y0 + height; ++y) {
      for (int x = x0; x < x0 + width; ++x) {
        image[static_cast<size_t>(y * kSide + x)] = colour;
      }
    }
  }
}

void light_and_noise(RandomStream& random,
                     const std::array<Colour, kPlane>& image,
                     std::span<uint8_t> out) {
  const int slope_x = static_cast<int>(random.between(-3, 3));
  const int slope_y = static_cast<int>(random.between(-3, 3));
  const int strength = static_cast<int>(random.between(4, 32));
  for (int pixel = 0; pixel < kPlane; ++pixel) {
    const int light = (pixel % kSide - kSide / 2) * slope_x / 2 +
                      (pixel / kSide - kSide / 2) * slope_y / 2;
    uint64_t bits = random.next();
    for (int c = 0; c < 3; ++c, bits >>= 16) {
      // The sum of two bytes has a triangular distribution around 0.
      const int noise =
          static_cast<int>((bits & 255) + ((bits >> 8) & 255)) - 255;
      const int value =
          image[static_cast<size_t>(pixel)][c] + light + noise * strength / 128;
      out[static_cast<size_t>(c * kPlane + pixel)] =
          static_cast<uint8_t>(std::clamp(value, 0, 255));
    }
  }
}

/// Paints a 32x32 image (3 planes) of class `label` as listed in datasets.h.
/// Everything else is drawn from `random`.
void paint_figure(RandomStream& random, int label, std::span<uint8_t> out) {
  const Colour ground = random_colour(random, 0, 110);
  const Colour ink = ink_on(random, ground);
  const Figure figure = random_figure(random, label);
  const auto cover = draw(random, figure);
  std::array<Colour, kPlane> image;
  for (size_t pixel = 0; pixel < kPlane; ++pixel) {
    for (size_t c = 0; c < 3; ++c) {
      image[pixel][c] =
          (ink[c] * cover[pixel] + ground[c] * (4 - cover[pixel])) / 4;
    }
  }
  blot(random, image);
  light_and_noise(random, image, out);
}

constexpr int64_t kDefaultTrain = 10'000;
constexpr int64_t kMaxSamples = 1'000'000;
constexpr int64_t kTrainPerTest = 5;

class Synthetic : public Dataset {
 public:
  Synthetic(uint64_t seed, int64_t size, Split split)
      : seed_(seed),
        split_(split),
        labels_(static_cast<size_t>(size)),
        images_(static_cast<size_t>(size) * kFigureBytes) {
    // Measured on the images themselves.
    mean_ = {0.307f, 0.307f, 0.307f};
    stddev_ = {0.231f, 0.231f, 0.231f};
    const int64_t threads = std::clamp<int64_t>(
        size / 256, 1, static_cast<int64_t>(allowed_cores().size()));
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; ++t) {
      try {
        others.emplace_back([this, t, threads] { make(t, threads); });
      } catch (const std::system_error&) {
        make(t, threads);  // no thread is left: this thread does it
      }
    }
    make(0, threads);
    for (auto& thread : others) thread.join();
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  void read_checked(int64_t index, std::span<uint8_t> out) const override {
    std::memcpy(out.data(),
                images_.data() + static_cast<size_t>(index) * kFigureBytes,
                out.size());
  }
  int64_t label_of(int64_t index) const override {
    return labels_[static_cast<size_t>(index)];
  }

 private:
  void make(int64_t first, int64_t step) {
    for (int64_t i = first; i < size(); i += step) {
      const auto split = static_cast<uint64_t>(split_);
      const auto index = static_cast<uint64_t>(i);
      // Every ten consecutive images have each class once, in their own order.
      RandomStream ten(StreamUse::kSynthetic, {seed_, split, ~(index / 10)});
      const int64_t label =
          (ten.below(kFigureClasses) + 7 * i) % kFigureClasses;
      labels_[static_cast<size_t>(i)] = static_cast<uint8_t>(label);
      RandomStream random(StreamUse::kSynthetic, {seed_, split, index});
      paint_figure(
          random, static_cast<int>(label),
          std::span(images_).subspan(index * kFigureBytes, kFigureBytes));
    }
  }

  uint64_t seed_;
  Split split_;
  std::vector<uint8_t> labels_;
  std::vector<uint8_t> images_;
};

}  // namespace

std::shared_ptr<const Dataset> synthetic(uint64_t seed, int64_t samples,
                                         Split split) {
  if (samples < 0 || samples > kMaxSamples) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "can't make that many synthetic images",
                 .expected = fmt::format("1 to {}, or 0 for {}", kMaxSamples,
                                         kDefaultTrain),
                 .got = fmt::format("{}", samples)});
  }
  const int64_t train = samples == 0 ? kDefaultTrain : samples;
  const int64_t test = std::max<int64_t>(1, train / kTrainPerTest);
  return std::make_shared<Synthetic>(
      seed, split == Split::kTrain ? train : test, split);
}

}  // namespace lockstep::data
