#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::data {

/// Labelled images of one size. Thread-safe once built: the workers of a loader
/// read images at the same time.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  /// Writes image `index` to `out`, which has image_bytes() bytes: channels
  /// first, then rows. May read and decode a file. The bytes depend only on the
  /// index. Throws InvalidArgument if the index is not in 0..size()-1, or if
  /// `out` has another size.
  void read(int64_t index, std::span<uint8_t> out) const;
  /// Returns the class of image `index`. Throws as read() does.
  int64_t label(int64_t index) const;
  /// Returns the name of one image, in the singular: "generated image".
  virtual std::string sample_name() const { return "image"; }
  /// Returns a SHA-256 in hex of the data, which must be the same when a run is
  /// resumed. It covers the size, all images and all labels, unless a dataset
  /// has a faster way.
  virtual std::string fingerprint() const;

  int64_t classes() const { return classes_; }
  int64_t channels() const { return channels_; }
  int64_t height() const { return height_; }
  int64_t width() const { return width_; }
  size_t image_bytes() const {
    return static_cast<size_t>(channels_ * height_ * width_);
  }
  /// Returns the mean of each channel, of pixels scaled to 0..1.
  const std::vector<float>& mean() const { return mean_; }
  const std::vector<float>& stddev() const { return stddev_; }
  /// Returns true if a mirrored image still belongs to its class. A digit does
  /// not.
  bool may_be_mirrored() const { return may_be_mirrored_; }

 private:
  /// Implement read() and label() for arguments that were checked.
  virtual void read_checked(int64_t index, std::span<uint8_t> out) const = 0;
  virtual int64_t label_of(int64_t index) const = 0;
  void check_index(int64_t index) const;

 protected:
  int64_t classes_ = 10;
  int64_t channels_ = 3;
  int64_t height_ = 32;
  int64_t width_ = 32;
  std::vector<float> mean_{0.4914f, 0.4822f, 0.4465f};
  std::vector<float> stddev_{0.2470f, 0.2435f, 0.2616f};
  bool may_be_mirrored_ = true;
};

/// The two parts of a dataset.
enum class Split { kTrain, kTest };

/// Returns the names of the datasets that open() knows: synthetic, cifar10,
/// cifar100, mnist, fashion-mnist, image-folder.
const std::vector<std::string>& dataset_names();

/// Specifies the dataset that open() opens.
struct DataSpec {
  std::string name = "synthetic";  ///< one of dataset_names()
  std::string dir;    ///< folder of the files, for all but synthetic
  uint64_t seed = 0;  ///< synthetic
  /// synthetic: number of training images (0: 10,000). A fifth of it is for
  /// testing.
  int64_t samples = 0;
  int64_t image_size = 224;  ///< image-folder: height and width for training
  bool warns = true;         ///< logs a warning if files are missing
};

/// Opens a dataset. Throws DataError naming the file, what was expected and
/// what was found; InvalidArgument for an unknown name.
std::shared_ptr<const Dataset> open(const DataSpec& spec, Split split);

}  // namespace lockstep::data
