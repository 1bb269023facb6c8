#include <array>
#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <jerror.h>
#include <jpeglib.h>

#include <fmt/format.h>

#include "lockstep/data/images/decode_image.h"

namespace lockstep::data {
namespace {

// A small file can have thousands of scans, each of which costs as much as the
// whole image. Encoders make about ten.
constexpr int kMaxScans = 200;

/// State for errors, which the library reports by a call that must not return.
struct JpegErrors {
  jpeg_error_mgr manager;  // first member: the library has a pointer to it
  std::jmp_buf on_error;
  std::array<char, JMSG_LENGTH_MAX> text;
};

struct JpegProgress {
  jpeg_progress_mgr manager;  // first member, as above
  bool has_too_many_scans;
};

[[noreturn]] void give_up(j_common_ptr jpeg) {
  auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  (*jpeg->err->format_message)(jpeg, errors->text.data());
  std::longjmp(errors->on_error, 1);
}

// Treats warnings as errors if part of the image is then made up. Otherwise
// nobody would see why the model learns less.
void on_warning(j_common_ptr jpeg, int level) {
  if (level >= 0) return;  // a trace message
  switch (jpeg->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_MUST_RESYNC:
      give_up(jpeg);
    default:
      return;
  }
}

void no_output(j_common_ptr /*jpeg*/) {}

void check_scans(j_common_ptr jpeg) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(jpeg);
  if (decompress->input_scan_number <= kMaxScans) return;
  auto* errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  reinterpret_cast<JpegProgress*>(jpeg->progress)->has_too_many_scans = true;
  errors->text[0] = '\0';
  std::longjmp(errors->on_error, 1);
}

// Converts as Pillow's convert("RGB") does. Every channel is stored as 255
// minus its ink, as Adobe's programs write it, with or without their marker, as
// in Pillow.
void cmyk_to_rgb(const uint8_t* cmyk, size_t pixels, uint8_t* rgb) {
  for (size_t i = 0; i < pixels; ++i, cmyk += 4, rgb += 3) {
    const int light = cmyk[3];
    for (int channel = 0; channel < 3; ++channel) {
      // light * ink / 255, rounded.
      const int product = light * (255 - cmyk[channel]) + 128;
      rgb[channel] =
          static_cast<uint8_t>(light - (((product >> 8) + product) >> 8));
    }
  }
}

/// Decodes in two calls, so that memory can be allocated between them. Neither
/// call has an object with a destructor, which longjmp() would skip.
class JpegDecoder {
 public:
  JpegDecoder() {
    jpeg_.err = jpeg_std_error(&errors_.manager);
    errors_.manager.error_exit = give_up;
    errors_.manager.emit_message = on_warning;
    errors_.manager.output_message = no_output;
    progress_.manager.progress_monitor = check_scans;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&jpeg_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  bool read_header(std::span<const uint8_t> bytes) {
    if (setjmp(errors_.on_error) != 0) return false;
    jpeg_create_decompress(&jpeg_);
    jpeg_.progress = &progress_.manager;
    jpeg_mem_src(&jpeg_, bytes.data(), bytes.size());
    jpeg_read_header(&jpeg_, TRUE);
    return true;
  }

  /// `pixels` has three bytes per pixel.
  bool decode(uint8_t* pixels) {
    if (setjmp(errors_.on_error) != 0) return false;
    // libjpeg converts YCCK to CMYK, but neither of them to RGB.
    jpeg_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(&jpeg_);
    const size_t width = jpeg_.output_width;
    JSAMPARRAY cmyk = nullptr;  // a row, freed with jpeg_
    if (is_cmyk()) {
      cmyk = (*jpeg_.mem->alloc_sarray)(reinterpret_cast<j_common_ptr>(&jpeg_),
                                        JPOOL_IMAGE,
                                        static_cast<JDIMENSION>(4 * width), 1);
    }
    while (jpeg_.output_scanline < jpeg_.output_height) {
      JSAMPROW row = pixels + 3 * width * jpeg_.output_scanline;
      jpeg_read_scanlines(&jpeg_, cmyk == nullptr ? &row : cmyk, 1);
      if (cmyk != nullptr) cmyk_to_rgb(cmyk[0], width, row);
    }
    jpeg_finish_decompress(&jpeg_);
    return true;
  }

  /// Returns true if `bytes` bytes can hold the image: a block of 8 x 8 pixels
  /// takes at least one bit. (With arithmetic coding, which is hardly used, an
  /// image of one colour takes less.)
  bool fits_in(size_t bytes) const {
    const auto blocks = [](int64_t pixels) { return (pixels + 7) / 8; };
    return blocks(width()) * blocks(height()) <=
           8 * static_cast<int64_t>(bytes);
  }
  int64_t width() const { return jpeg_.image_width; }
  int64_t height() const { return jpeg_.image_height; }
  /// Returns the error after a call that returned false.
  std::string error() const {
    return progress_.has_too_many_scans
               ? fmt::format("more than {} scans", kMaxScans)
               : std::string(errors_.text.data());
  }

 private:
  bool is_cmyk() const {
    return jpeg_.jpeg_color_space == JCS_CMYK ||
           jpeg_.jpeg_color_space == JCS_YCCK;
  }

  jpeg_decompress_struct jpeg_{};
  JpegErrors errors_{};
  JpegProgress progress_{};
};

}  // namespace

Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& path) {
  const ImageFile file{"JPEG", path, bytes.size()};
  JpegDecoder decoder;
  if (!decoder.read_header(bytes)) file.refuse(decoder.error());
  Image image = file.allocate(decoder.width(), decoder.height(),
                              decoder.fits_in(bytes.size()));
  if (!decoder.decode(image.pixels.data())) file.refuse(decoder.error());
  return image;
}

}  // namespace lockstep::data
