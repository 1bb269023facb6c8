// Feeds bytes to the decoders of JPEG and PNG, and to the reader of IDX. An
// accepted image has as many bytes as its sizes say.
#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/data/images/decode_image.h"
#include "lockstep/data/images/idx_file.h"
#include "tests/fuzz/input.h"

namespace lockstep::fuzz {
namespace {

// Small enough that no input takes a second. A few kilobytes may contain
// millions of pixels of one colour, which is allowed.
constexpr int64_t kMaxToFit = 1 << 20;

void decode_and_fit(std::span<const uint8_t> bytes) {
  const data::Image image = data::decode_image(bytes, "image");
  require(image.width > 0 && image.height > 0, "an image without pixels");
  require(static_cast<int64_t>(image.pixels.size()) ==
              3 * image.width * image.height,
          "pixels are missing");
  if (image.width * image.height > kMaxToFit) return;
  constexpr int64_t kSide = 8;
  std::vector<uint8_t> fitted(3 * kSide * kSide);
  data::fit_image(image, kSide, fitted);
}

void read_array(std::string_view bytes) {
  const Input input(bytes);
  constexpr int64_t kMaxBytes = 1 << 20;
  const auto array =
      data::read_idx(input.path(), {data::kAnySize, data::kAnySize}, kMaxBytes);
  require(static_cast<int64_t>(array.bytes.size()) ==
              array.sizes.at(0) * array.sizes.at(1),
          "bytes of an array are missing");
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  try {
    fuzz::decode_and_fit({data, size});
  } catch (const DataError& error) {
    fuzz::require_plain_message(error);
  }
  try {
    fuzz::read_array({reinterpret_cast<const char*>(data), size});
  } catch (const DataError& error) {
    fuzz::require_plain_message(error);
  }
  return 0;
}
