#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::training {

/// A series of values by step, of which at most `most` are kept, however long a
/// run is: first the value of every step, then of every second step, of every
/// fourth, and so on.
template <class Value>
class ThinnedSeries {
 public:
  struct Point {
    int64_t step = 0;
    Value value{};
  };

  explicit ThinnedSeries(size_t most) : most_(most) {}

  /// Returns true if the value of `step` would be kept.
  bool takes(int64_t step) const { return step % every_ == 0; }

  /// Adds a value. Steps come in order. Values of `step` and of later steps are
  /// dropped, because those steps are repeated.
  void add(int64_t step, Value value) {
    forget_after(step - 1);
    if (!takes(step)) return;
    points_.push_back({.step = step, .value = std::move(value)});
    if (points_.size() <= most_) return;
    every_ *= 2;
    std::erase_if(points_,
                  [this](const Point& point) { return !takes(point.step); });
  }
  void forget_after(int64_t step) {
    while (!points_.empty() && points_.back().step > step) points_.pop_back();
  }

  const std::vector<Point>& points() const { return points_; }

 private:
  size_t most_;
  int64_t every_ = 1;  // steps between two points
  std::vector<Point> points_;
};

}  // namespace lockstep::training
