#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>

#include <fmt/format.h>

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
  constexpr int kMinContrast = 220;
  while (true) {
    const Colour colour = random_colour(random, 80, 255);
    if (brightness(colour) - brightness(ground) >= kMinContrast) {
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

/// Position and rotation of a figure.
struct Pose {
  int middle_x;
  int middle_y;
  int cosine;  ///< in 4096ths
  int sine;
};

Pose random_pose(RandomStream& random) {
  constexpr int kShift = 4 * kUnit;
  Pose pose{};
  pose.middle_x =
      kSide * kUnit / 2 + static_cast<int>(random.between(-kShift, kShift));
  pose.middle_y =
      kSide * kUnit / 2 + static_cast<int>(random.between(-kShift, kShift));
  // A rotation by 2 atan(t / 64), at most 14 degrees.
  const int t = static_cast<int>(random.between(-8, 8));
  const int scale = 64 * 64 + t * t;
  pose.cosine = 4096 * (64 * 64 - t * t) / scale;
  pose.sine = 4096 * (2 * 64 * t) / scale;
  return pose;
}

using Cover = std::array<uint8_t, kPlane>;

// Counts for each pixel how many of its 4 points have covers(u, v), where
// (u, v) is the point relative to the middle of the figure, v downwards.
template <class Covers>
Cover count_points(const Pose& pose, Covers covers) {
  const auto is_covered = [&](int sub_x, int sub_y) {
    const int x = sub_x * (kUnit / 2) + kUnit / 4 - pose.middle_x;
    const int y = sub_y * (kUnit / 2) + kUnit / 4 - pose.middle_y;
    const int u = (pose.cosine * x + pose.sine * y) >> 12;
    const int v = (pose.cosine * y - pose.sine * x) >> 12;
    return covers(u, v) ? 1 : 0;
  };
  Cover cover{};
  auto points = cover.begin();
  for (int y = 0; y < 2 * kSide; y += 2) {
    for (int x = 0; x < 2 * kSide; x += 2) {
      *points++ =
          static_cast<uint8_t>(is_covered(x, y) + is_covered(x + 1, y) +
                               is_covered(x, y + 1) + is_covered(x + 1, y + 1));
    }
  }
  return cover;
}

// Returns how many of 4 points of each pixel the figure covers. The loop over
// the points is compiled for each shape, because a choice for each point takes
// longer than everything else.
Cover draw(const Figure& figure, const Pose& pose) {
  const int r = figure.radius;
  const auto in_disk = [r](int u, int v) { return u * u + v * v < r * r; };
  const auto larger = [](int u, int v) {
    return std::max(std::abs(u), std::abs(v));
  };
  const auto is_odd_row = [&figure](int v) {
    return is_odd_stripe(v, figure.phase_v, figure.period);
  };
  const auto is_odd_column = [&figure](int u) {
    return is_odd_stripe(u, figure.phase_u, figure.period);
  };
  switch (figure.shape) {
    case Shape::kDisk:
      return count_points(pose, in_disk);
    case Shape::kRing:
      return count_points(pose, [=](int u, int v) {
        return in_disk(u, v) && 64 * (u * u + v * v) > 25 * r * r;
      });
    case Shape::kSquare:
      return count_points(
          pose, [=](int u, int v) { return 8 * larger(u, v) < 7 * r; });
    case Shape::kFrame:
      return count_points(pose, [=](int u, int v) {
        return 8 * larger(u, v) < 7 * r && 2 * larger(u, v) > r;
      });
    case Shape::kTriangle:
      return count_points(pose, [=](int u, int v) {
        return 4 * std::abs(v) < 3 * r &&
               20 * std::abs(u) < 3 * (4 * v + 3 * r);
      });
    case Shape::kPlus:
      return count_points(pose, [=](int u, int v) {
        return larger(u, v) < r && 4 * std::min(std::abs(u), std::abs(v)) < r;
      });
    case Shape::kCross:
      return count_points(pose, [=](int u, int v) {
        return 5 * larger(u, v) < 4 * r &&
               3 * std::abs(std::abs(u) - std::abs(v)) < r;
      });
    case Shape::kHorizontal:
      return count_points(
          pose, [=](int u, int v) { return in_disk(u, v) && is_odd_row(v); });
    case Shape::kVertical:
      return count_points(pose, [=](int u, int v) {
        return in_disk(u, v) && is_odd_column(u);
      });
    case Shape::kCheckers:
      return count_points(pose, [=](int u, int v) {
        return in_disk(u, v) && is_odd_column(u) != is_odd_row(v);
      });
  }
  return {};
}

/// A plane for each colour, with values that may be above 255 or below 0.
using Image = std::array<std::array<int, kPlane>, 3>;

// Paints small blots of other colours, next to the figure or over it.
void blot(RandomStream& random, Image& image) {
  for (int64_t left = random.below(3); left > 0; --left) {
    const Colour colour = random_colour(random, 0, 255);
    const int width = static_cast<int>(random.between(2, 4));
    const int height = static_cast<int>(random.between(2, 4));
    const int x0 = static_cast<int>(random.below(kSide - width));
    const int y0 = static_cast<int>(random.below(kSide - height));
    for (size_t c = 0; c < 3; ++c) {
      for (int y = y0; y < y0 + height; ++y) {
        std::fill_n(image[c].begin() + (y * kSide + x0), width, colour[c]);
      }
    }
  }
}

void light_and_noise(RandomStream& random, Image& image) {
  const int slope_x = static_cast<int>(random.between(-3, 3));
  const int slope_y = static_cast<int>(random.between(-3, 3));
  const int strength = static_cast<int>(random.between(4, 32));
  for (int pixel = 0; pixel < kPlane; ++pixel) {
    const int light = (pixel % kSide - kSide / 2) * slope_x / 2 +
                      (pixel / kSide - kSide / 2) * slope_y / 2;
    uint64_t bits = random.next();
    for (auto& plane : image) {
      // The sum of two bytes has a triangular distribution around 0.
      const int noise =
          static_cast<int>((bits & 255) + ((bits >> 8) & 255)) - 255;
      plane[static_cast<size_t>(pixel)] += light + noise * strength / 128;
      bits >>= 16;
    }
  }
}

/// Paints a 32x32 image (3 planes) of class `label` as listed in datasets.h.
/// Everything else is drawn from `random`.
void paint_figure(RandomStream& random, int label, std::span<uint8_t> out) {
  const Colour ground = random_colour(random, 0, 110);
  const Colour ink = ink_on(random, ground);
  const Figure figure = random_figure(random, label);
  const Cover cover = draw(figure, random_pose(random));
  Image image;
  for (size_t c = 0; c < 3; ++c) {
    std::array<int, 5> mixed{};  // by the number of points
    for (int points = 0; points <= 4; ++points) {
      mixed[static_cast<size_t>(points)] =
          (ink[c] * points + ground[c] * (4 - points)) / 4;
    }
    for (size_t pixel = 0; pixel < kPlane; ++pixel) {
      image[c][pixel] = mixed[cover[pixel]];
    }
  }
  blot(random, image);
  light_and_noise(random, image);
  for (size_t c = 0; c < 3; ++c) {
    for (size_t pixel = 0; pixel < kPlane; ++pixel) {
      out[c * kPlane + pixel] =
          static_cast<uint8_t>(std::clamp(image[c][pixel], 0, 255));
    }
  }
}

constexpr int64_t kDefaultTrain = 10'000;
constexpr int64_t kMaxSamples = 1'000'000;
constexpr int64_t kTrainPerTest = 5;

// Paints an image when it is first read: the first step of a run needs few of
// them, and a rank never reads most of them.
class Synthetic : public Dataset {
 public:
  Synthetic(uint64_t seed, int64_t size, Split split)
      : seed_(seed),
        split_(static_cast<uint64_t>(split)),
        size_(size),
        is_painted_(
            std::make_unique<std::once_flag[]>(static_cast<size_t>(size))),
        images_(std::make_unique_for_overwrite<uint8_t[]>(
            static_cast<size_t>(size) * kFigureBytes)) {
    // Measured on the images themselves.
    mean_ = {0.307f, 0.307f, 0.307f};
    stddev_ = {0.231f, 0.231f, 0.231f};
  }

  int64_t size() const override { return size_; }
  // A user whose folder of images was not found must see what is trained on.
  std::string sample_name() const override { return "generated image"; }
  void read_checked(int64_t index, std::span<uint8_t> out) const override {
    const auto at = static_cast<size_t>(index);
    const std::span image(images_.get() + at * kFigureBytes, kFigureBytes);
    std::call_once(is_painted_[at], [&] {
      RandomStream random(StreamUse::kSynthetic, {seed_, split_, at});
      paint_figure(random, static_cast<int>(label_of(index)), image);
    });
    std::memcpy(out.data(), image.data(), image.size());
  }
  int64_t label_of(int64_t index) const override {
    // Every ten consecutive images have each class once, in their own order.
    const auto ten = static_cast<uint64_t>(index / 10);
    RandomStream random(StreamUse::kSynthetic, {seed_, split_, ~ten});
    return (random.below(kFigureClasses) + 7 * index) % kFigureClasses;
  }

 private:
  uint64_t seed_;
  uint64_t split_;
  int64_t size_;
  std::unique_ptr<std::once_flag[]> is_painted_;
  std::unique_ptr<uint8_t[]> images_;
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
