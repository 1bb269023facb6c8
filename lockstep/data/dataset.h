#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// Labelled images of one size, channels first: image i is C*H*W bytes.
/// Thread-safe once built.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual std::span<const uint8_t> image(int64_t index) const = 0;
  virtual int64_t label(int64_t index) const = 0;

  int64_t classes() const { return classes_; }
  int64_t channels() const { return channels_; }
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  /// Per channel, of pixels scaled to 0..1.
  const std::vector<float>& mean() const { return mean_; }
  const std::vector<float>& stddev() const { return stddev_; }

 protected:
  int64_t classes_ = 10;
  int64_t channels_ = 3;
  int64_t height_ = 32;
  int64_t width_ = 32;
  std::vector<float> mean_{0.4914f, 0.4822f, 0.4465f};
  std::vector<float> stddev_{0.2470f, 0.2435f, 0.2616f};
};

/// Which of a dataset's two parts.
enum class Split { kTrain, kTest };

/// Which dataset open() opens.
struct DataSpec {
  std::string name = "synthetic";  ///< synthetic or cifar10
  std::string dir;                 ///< cifar10: folder of the *.bin files
  uint64_t seed = 0;               ///< synthetic
  /// synthetic: images to train on (0: 10,000); to test, a fifth of them.
  int64_t samples = 0;
  bool warns = true;  ///< in the log, if files of the dataset are missing
};

/// Opens a dataset. Throws DataError naming the file, what was expected and
/// what was found; InvalidArgument for an unknown name.
std::shared_ptr<const Dataset> open(const DataSpec& spec, Split split);

}  // namespace lockstep::data
