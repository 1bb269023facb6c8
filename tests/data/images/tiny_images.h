#pragma once

#include <array>
#include <cstdint>
#include <cstdio>  // needed by jpeglib.h
#include <cstdlib>
#include <jpeglib.h>
#include <png.h>
#include <string>
#include <vector>

namespace lockstep::data {

/// Returns the pixels of the images below: a gradient that begins with `shade`.
inline std::vector<uint8_t> gradient(int width, int height, uint8_t shade) {
  std::vector<uint8_t> pixels(static_cast<size_t>(3 * width * height));
  for (size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<uint8_t>(shade + i / 3 % 32 + 40 * (i % 3));
  }
  return pixels;
}

/// Returns a PNG file of `pixels`, in one of libpng's formats.
inline std::string png_file(int width, int height, png_uint_32 format,
                            const std::vector<uint8_t>& pixels) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = format;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&image, nullptr, &size, 0, pixels.data(), 0,
                            nullptr);
  std::string file(size, '\0');
  png_image_write_to_memory(&image, file.data(), &size, 0, pixels.data(), 0,
                            nullptr);
  return file;
}

/// Returns a PNG file of the gradient.
inline std::string png_of(int width, int height, uint8_t shade) {
  return png_file(width, height, PNG_FORMAT_RGB,
                  gradient(width, height, shade));
}

enum class JpegSize { kUsual, kSmallest };

/// Returns a JPEG file of `pixels`, in rows with `components` bytes per pixel.
inline std::string jpeg_file(int width, int height, int components,
                             J_COLOR_SPACE space,
                             const std::vector<uint8_t>& pixels,
                             JpegSize wanted = JpegSize::kUsual) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = static_cast<JDIMENSION>(width);
  jpeg.image_height = static_cast<JDIMENSION>(height);
  jpeg.input_components = components;
  jpeg.in_color_space = space;
  jpeg_set_defaults(&jpeg);
  if (wanted == JpegSize::kSmallest) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row = const_cast<uint8_t*>(pixels.data()) +
                static_cast<size_t>(jpeg.next_scanline) *
                    static_cast<size_t>(components * width);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  return file;
}

/// Returns a JPEG file of the gradient.
inline std::string jpeg_of(int width, int height, uint8_t shade) {
  return jpeg_file(width, height, 3, JCS_RGB, gradient(width, height, shade));
}

/// Returns a JPEG file in which all pixels are `cmyk`.
inline std::string cmyk_jpeg_of(int width, int height,
                                const std::array<uint8_t, 4>& cmyk) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < width * height; ++i) {
    pixels.insert(pixels.end(), cmyk.begin(), cmyk.end());
  }
  return jpeg_file(width, height, 4, JCS_CMYK, pixels);
}

}  // namespace lockstep::data
