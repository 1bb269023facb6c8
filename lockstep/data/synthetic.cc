#include "lockstep/data/synthetic.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/data/figure.h"
#include "lockstep/data/random_stream.h"

namespace lockstep::data {
namespace {

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
    // Those of the images themselves, measured.
    mean_ = {0.307f, 0.307f, 0.307f};
    stddev_ = {0.231f, 0.231f, 0.231f};
    const int64_t threads = std::clamp<int64_t>(
        size / 256, 1, static_cast<int64_t>(allowed_cores().size()));
    std::vector<std::thread> others;
    for (int64_t t = 1; t < threads; ++t) {
      try {
        others.emplace_back([this, t, threads] { make(t, threads); });
      } catch (const std::system_error&) {
        make(t, threads);  // no thread is left: this one does that, too
      }
    }
    make(0, threads);
    for (auto& thread : others) thread.join();
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  std::span<const uint8_t> image(int64_t index) const override {
    return {images_.data() + static_cast<size_t>(index) * kFigureBytes,
            kFigureBytes};
  }
  int64_t label(int64_t index) const override {
    return labels_[static_cast<size_t>(index)];
  }

 private:
  void make(int64_t first, int64_t step) {
    for (int64_t i = first; i < size(); i += step) {
      const auto split = static_cast<uint64_t>(split_);
      const auto index = static_cast<uint64_t>(i);
      // Every ten images in turn have every class once, in an order of theirs.
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
