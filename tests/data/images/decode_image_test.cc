#include "lockstep/data/images/decode_image.h"

#include <array>
#include <random>
#include <span>
#include <zlib.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"
#include "tests/data/images/tiny_images.h"

namespace lockstep::data {
namespace {

Image decode(const std::string& bytes) {
  return decode_image(
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()},
      "image.x");
}

void expect_refused(const std::string& bytes,
                    const std::vector<std::string>& names = {}) {
  expect_problem(error_of<DataError>([&] { decode(bytes); }),
                 ErrorCode::kMalformedData, {"image.x"});
  expect_problem(error_of<DataError>([&] { decode(bytes); }),
                 ErrorCode::kMalformedData, names);
}

// Returns 4 bytes, the most significant byte first.
std::string word(uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) {
    bytes += static_cast<char>(value >> shift);
  }
  return bytes;
}

TEST(DecodeImage, KnowsAFormatByItsBytes) {
  const Image png = decode(png_of(20, 12, 7));
  EXPECT_EQ(png.width, 20);
  EXPECT_EQ(png.height, 12);
  EXPECT_EQ(png.pixels, gradient(20, 12, 7));
  const Image jpeg = decode(jpeg_of(20, 12, 7));
  EXPECT_EQ(jpeg.width, 20);
  EXPECT_EQ(jpeg.height, 12);
  EXPECT_EQ(jpeg.pixels.size(), 720u);
}

TEST(DecodeImage, RefusesOtherBytes) {
  expect_refused("", {"an empty file"});
  expect_refused("GIF89a");
  expect_refused("\xff\xd8\xff");
  expect_refused("\x89PNG\r\n\x1a\n");
}

TEST(DecodeImage, RefusesWhatEndsEarlyAnywhere) {
  for (const std::string& whole : {png_of(40, 30, 5), jpeg_of(40, 30, 5)}) {
    for (size_t size = 8; size + 2 < whole.size(); size += 7) {
      expect_refused(whole.substr(0, size));
    }
  }
}

TEST(DecodeImage, RefusesAPngWithAChangedByte) {
  // Each chunk has a checksum: the header, the pixels and the end.
  const std::string whole = png_of(40, 30, 5);
  for (size_t at = 8; at < whole.size(); at += 3) {
    std::string changed = whole;
    changed[at] ^= 0x20;
    try {
      // With a different name or length of a chunk, the pixels may still be
      // right.
      EXPECT_EQ(decode(changed).pixels, gradient(40, 30, 5)) << at;
    } catch (const DataError&) {
    }
  }
  std::string changed = whole;
  changed[whole.find("IDAT") + 8] ^= 1;
  expect_refused(changed);
}

// An image of one colour, which JPEG preserves except for rounding.
TEST(DecodeImage, TakesCmykAsLightAndNotAsInk) {
  struct Case {
    std::array<uint8_t, 4> stored;
    std::array<int, 3> rgb;
  };
  for (const auto& [stored, rgb] : {Case{{255, 255, 255, 255}, {255, 255, 255}},
                                    Case{{0, 255, 255, 255}, {0, 255, 255}},
                                    Case{{255, 0, 255, 128}, {128, 0, 128}},
                                    Case{{128, 64, 255, 0}, {0, 0, 0}}}) {
    const Image image = decode(cmyk_jpeg_of(16, 8, stored));
    ASSERT_EQ(image.pixels.size(), 3u * 16 * 8);
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      EXPECT_NEAR(image.pixels[i], rgb[i % 3], 3) << i;
    }
  }
}

TEST(DecodeImage, RefusesCmykThatEndsEarlyAnywhere) {
  const std::string whole = cmyk_jpeg_of(40, 30, {9, 99, 199, 250});
  for (size_t size = 8; size + 2 < whole.size(); size += 7) {
    expect_refused(whole.substr(0, size));
  }
}

// 2 KB that would need gigabytes.
TEST(DecodeImage, RefusesMorePixelsThanAPhotograph) {
  std::string jpeg = jpeg_of(20, 12, 7);
  const size_t frame = jpeg.find("\xff\xc0");
  ASSERT_NE(frame, std::string::npos);
  jpeg.replace(frame + 5, 4, "\xff\xdc\xff\xdc");  // 65,500 x 65,500
  expect_refused(jpeg, {"65500 x 65500"});
  std::string png = png_of(20, 12, 7);
  png.replace(png.find("IHDR") + 4, 8, word(900'000) + word(900'000));
  // Its checksum is computed in a different way than ours. libpng's error has
  // no size.
  expect_refused(png);
}

// It is refused before memory is allocated for the pixels.
TEST(DecodeImage, RefusesMorePixelsThanItsBytesCanHold) {
  std::string jpeg = jpeg_of(20, 12, 7);
  jpeg.replace(jpeg.find("\xff\xc0") + 5, 4,
               std::string("\x20\x00\x20\x00", 4));  // 8,192 x 8,192
  expect_refused(jpeg, {fmt::format("8192 x 8192 pixels in {}", jpeg.size())});
  std::string png = png_of(20, 12, 7);
  const size_t header = png.find("IHDR");
  png.replace(header + 4, 8, word(8192) + word(8192));
  const auto* checked =
      reinterpret_cast<const unsigned char*>(png.data() + header);
  png.replace(header + 17, 4,
              word(static_cast<uint32_t>(crc32(0, checked, 17))));
  expect_refused(png, {fmt::format("8192 x 8192 pixels in {}", png.size())});
}

// An image of one colour makes the smallest possible file.
TEST(DecodeImage, TakesTheSmallestFilesThereAre) {
  constexpr int kSide = 4000;
  const std::vector<uint8_t> black(size_t{kSide} * kSide, 0);
  const auto jpeg =
      jpeg_file(kSide, kSide, 1, JCS_GRAYSCALE, black, JpegSize::kSmallest);
  EXPECT_LT(jpeg.size(), black.size() / 250);
  EXPECT_EQ(decode(jpeg).width, kSide);
  const auto png = png_file(kSide, kSide, PNG_FORMAT_GRAY, black);
  EXPECT_LT(png.size(), black.size() / 900);
  EXPECT_EQ(decode(png).width, kSide);
}

TEST(DecodeImage, RefusesAJpegOfEndlessScans) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &memory, &size);
  jpeg.image_width = jpeg.image_height = 16;
  jpeg.input_components = 1;
  jpeg.in_color_space = JCS_GRAYSCALE;
  jpeg_set_defaults(&jpeg);
  jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  std::vector<uint8_t> row(16, 9);
  for (auto* rows = row.data(); jpeg.next_scanline < jpeg.image_height;) {
    jpeg_write_scanlines(&jpeg, &rows, 1);
  }
  jpeg_finish_compress(&jpeg);
  std::string file(reinterpret_cast<char*>(memory), size);
  jpeg_destroy_compress(&jpeg);
  std::free(memory);
  // Repeats the last scan.
  const size_t scan = file.rfind("\xff\xda");
  const std::string last = file.substr(scan, file.size() - 2 - scan);
  EXPECT_EQ(decode(file).width, 16);
  for (int i = 0; i < 500; ++i) file.insert(file.size() - 2, last);
  expect_refused(file, {"scans"});
}

// The result of the libraries is unknown, but they must not crash.
TEST(DecodeImage, SurvivesDamageAnywhere) {
  std::mt19937 random(11);
  for (const std::string& whole : {png_of(40, 30, 5), jpeg_of(40, 30, 5),
                                   cmyk_jpeg_of(40, 30, {9, 99, 199, 250})}) {
    for (int i = 0; i < 3000; ++i) {
      std::string changed = whole;
      for (auto left = 1 + random() % 4; left > 0; --left) {
        changed[3 + random() % (changed.size() - 3)] =
            static_cast<char>(random());
      }
      try {
        const Image image = decode(changed);
        EXPECT_EQ(image.pixels.size(), 3 * image.width * image.height);
      } catch (const DataError& error) {
        for (const char letter : std::string(error.what())) {
          EXPECT_TRUE(letter >= ' ' && letter <= '~');
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::data
