#include <array>
#include <cstring>
#include <png.h>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/printable.h"
#include "lockstep/data/images/decode_image.h"

namespace lockstep::data {
namespace {

// Limit for a chunk, including compressed text and profiles.
constexpr png_alloc_size_t kMaxChunkBytes = 8 << 20;
// Most bytes that deflate can make of one: a match of 258 takes two bits or
// more.
constexpr size_t kMaxExpansion = 1032;

/// Decodes in two calls, so that memory can be allocated between them. Neither
/// call has an object with a destructor, which longjmp() would skip.
class PngDecoder {
 public:
  explicit PngDecoder(std::span<const uint8_t> bytes) : left_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, give_up, ignore);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
    if (info_ == nullptr) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      throw DataError({.code = ErrorCode::kOutOfMemory,
                       .what = "libpng can't begin to decode"});
    }
  }
  ~PngDecoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  bool read_header() {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    png_set_chunk_malloc_max(png_, kMaxChunkBytes);
    png_set_read_fn(png_, this, read);
    png_read_info(png_, info_);
    return true;
  }

  /// Each of `rows` points to three bytes per pixel.
  bool decode(png_bytepp rows) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;
    const auto colour = png_get_color_type(png_, info_);
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (colour == PNG_COLOR_TYPE_GRAY) png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_16(png_);
    png_set_strip_alpha(png_);
    png_set_gray_to_rgb(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    if (png_get_rowbytes(png_, info_) != size_t{3} * width()) {
      png_error(png_, "rows of another length than RGB has");
    }
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  /// Returns true if `bytes` bytes can hold the image. Call it before decode().
  bool fits_in(size_t bytes) const {
    return png_get_rowbytes(png_, info_) * size_t{height()} <=
           kMaxExpansion * bytes;
  }
  uint32_t width() const { return png_get_image_width(png_, info_); }
  uint32_t height() const { return png_get_image_height(png_, info_); }
  /// Returns the error after a call that returned false. It has the name of a
  /// chunk, which may be any bytes.
  std::string error() const { return printable_ascii(error_.data()); }

 private:
  [[noreturn]] static void give_up(png_structp png, png_const_charp message) {
    auto& error = static_cast<PngDecoder*>(png_get_error_ptr(png))->error_;
    std::strncpy(error.data(), message, error.size() - 1);
    png_longjmp(png, 1);
  }

  static void ignore(png_structp /*png*/, png_const_charp /*message*/) {}

  static void read(png_structp png, png_bytep out, size_t size) {
    auto& left = static_cast<PngDecoder*>(png_get_io_ptr(png))->left_;
    if (size > left.size()) png_error(png, "the file ends early");
    std::memcpy(out, left.data(), size);
    left = left.subspan(size);
  }

  std::span<const uint8_t> left_;
  std::array<char, 128> error_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
};

}  // namespace

Image decode_png(std::span<const uint8_t> bytes, const std::string& path) {
  const ImageFile file{"PNG", path, bytes.size()};
  PngDecoder decoder(bytes);
  if (!decoder.read_header()) file.refuse(decoder.error());
  Image image = file.allocate(decoder.width(), decoder.height(),
                              decoder.fits_in(bytes.size()));
  std::vector<png_bytep> rows(static_cast<size_t>(image.height));
  for (size_t y = 0; y < rows.size(); ++y) {
    rows[y] = image.pixels.data() + 3 * y * static_cast<size_t>(image.width);
  }
  if (!decoder.decode(rows.data())) file.refuse(decoder.error());
  return image;
}

}  // namespace lockstep::data
