#include "lockstep/data/images/decode_image.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::array<uint8_t, 3> kJpegBegin{0xff, 0xd8, 0xff};
constexpr std::array<uint8_t, 8> kPngBegin{0x89, 'P',  'N',  'G',
                                           '\r', '\n', 0x1a, '\n'};

// Upper bound: a JPEG of kMaxPixels in the best quality is smaller.
constexpr size_t kMaxFileBytes = size_t{512} << 20;

bool begins_with(std::span<const uint8_t> bytes,
                 std::span<const uint8_t> beginning) {
  return bytes.size() >= beginning.size() &&
         std::equal(beginning.begin(), beginning.end(), bytes.begin());
}

}  // namespace

Image decode_image(std::span<const uint8_t> bytes, const std::string& path) {
  if (begins_with(bytes, kJpegBegin)) return decode_jpeg(bytes, path);
  if (begins_with(bytes, kPngBegin)) return decode_png(bytes, path);
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = "can't decode " + path,
                   .expected = "a JPEG or PNG image",
                   .got = bytes.empty() ? "an empty file" : "other bytes",
                   .fix = "get the file again, or remove it"});
}

void ImageFile::refuse(const std::string& why) const {
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = "can't decode " + path,
                   .expected = fmt::format("a whole {} image", format),
                   .got = why,
                   .fix = "get the file again, or remove it"});
}

Image ImageFile::allocate(int64_t width, int64_t height, bool fits) const {
  // Both are below 2^31.
  if (width * height > kMaxPixels) {
    refuse(fmt::format("{} x {} pixels, of at most {}", width, height,
                       kMaxPixels));
  }
  if (!fits) {
    refuse(fmt::format("{} x {} pixels in {} bytes", width, height, bytes));
  }
  Image image{.width = width, .height = height};
  image.pixels.resize(static_cast<size_t>(3 * width * height));
  return image;
}

Image read_image(const std::string& path) {
  std::string bytes;
  try {
    bytes = read_file(path, kMaxFileBytes);
  } catch (const IoError& cause) {
    throw DataError({.code = cause.code(), .what = text_of(cause)});
  }
  return decode_image(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, path);
}

}  // namespace lockstep::data
