#include "lockstep/data/images/idx_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <zlib.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/input_file.h"

namespace lockstep::data {
namespace {

constexpr uint8_t kTypeByte = 8;

/// Reads a file and decompresses it if it is compressed.
class PackedFile {
 public:
  explicit PackedFile(const std::string& path) : path_(path) {
    FileDescriptor file;
    try {
      file = open_regular_file(path).descriptor;
    } catch (const IoError& error) {
      throw DataError({.code = error.code(), .what = text_of(error)});
    }
    file_ = gzdopen(file.get(), "rb");
    if (file_ == nullptr) refuse_access("no memory is left");
    file.release();  // gzclose_r() closes it
  }
  ~PackedFile() { gzclose_r(file_); }
  PackedFile(const PackedFile&) = delete;
  PackedFile& operator=(const PackedFile&) = delete;

  /// Reads up to out.size() bytes. Returns how many were read.
  size_t read(std::span<uint8_t> out) {
    const int got =
        gzread(file_, out.data(), static_cast<unsigned>(out.size()));
    int code = Z_OK;
    const char* message = gzerror(file_, &code);
    if (code == Z_ERRNO) refuse_access(std::strerror(errno));
    if (got < 0 || code != Z_OK) {
      // zlib's text begins with the name of the file, which the error has
      // anyway.
      const std::string_view text(message);
      const size_t own = path_.size() + 2;
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = "can't unpack " + path_,
           .expected = "a whole gzip file",
           .got = std::string(text.size() > own ? text.substr(own) : text),
           .fix = "get the file again"});
    }
    return static_cast<size_t>(got);
  }

 private:
  [[noreturn]] void refuse_access(const std::string& why) const {
    throw DataError({.code = ErrorCode::kFileAccess,
                     .what = "can't read " + path_,
                     .got = why,
                     .fix = "check that it is there and that this user may "
                            "read it"});
  }

  std::string path_;
  gzFile file_ = nullptr;
};

std::string sizes_text(const std::vector<int64_t>& sizes) {
  std::vector<std::string> words;
  for (const int64_t size : sizes) {
    words.push_back(size == kAnySize ? "any" : fmt::format("{}", size));
  }
  return fmt::format("{}", fmt::join(words, " x "));
}

[[noreturn]] void refuse_idx(const std::string& path,
                             const std::string& expected,
                             const std::string& got) {
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = path + " is damaged or something else",
                   .expected = expected,
                   .got = got,
                   .fix = "get the file again"});
}

std::vector<int64_t> read_header(PackedFile& file, const std::string& path,
                                 const std::vector<int64_t>& expected) {
  std::array<uint8_t, 4> begin{};
  const auto dimensions = static_cast<uint8_t>(expected.size());
  const std::array<uint8_t, 4> right{0, 0, kTypeByte, dimensions};
  if (file.read(begin) != begin.size() || begin != right) {
    refuse_idx(
        path,
        fmt::format("an IDX file of bytes ({:02x})", fmt::join(right, " ")),
        fmt::format("{:02x} at its beginning", fmt::join(begin, " ")));
  }
  std::vector<int64_t> sizes;
  for (const int64_t size : expected) {
    std::array<uint8_t, 4> word{};
    if (file.read(word) != word.size()) {
      refuse_idx(path, "the sizes of an array", "the end of the file");
    }
    sizes.push_back(int64_t{word[0]} << 24 | word[1] << 16 | word[2] << 8 |
                    word[3]);
    if (size == kAnySize || size == sizes.back()) continue;
    sizes.resize(expected.size(), kAnySize);
    refuse_idx(path, "an array of " + sizes_text(expected) + " bytes",
               sizes_text(sizes));
  }
  return sizes;
}

}  // namespace

IdxArray read_idx(const std::string& path, const std::vector<int64_t>& sizes,
                  int64_t most_bytes) {
  PackedFile file(path);
  IdxArray array{.sizes = read_header(file, path, sizes)};
  // Each size is below 2^32, so a product is limited before the next one.
  int64_t total = 1;
  for (const int64_t size : array.sizes) {
    total = std::min(total * size, int64_t{1} << 31);
  }
  if (total > most_bytes) {
    refuse_idx(path, fmt::format("at most {} bytes", most_bytes),
               "an array of " + sizes_text(array.sizes));
  }
  // Read piece by piece, so that memory is allocated only for data that exist,
  // not for what a file claims to have.
  constexpr int64_t kPiece = 1 << 20;
  while (static_cast<int64_t>(array.bytes.size()) < total) {
    const auto had = array.bytes.size();
    const auto piece = static_cast<size_t>(
        std::min(kPiece, total - static_cast<int64_t>(had)));
    array.bytes.resize(had + piece);
    if (file.read(std::span(array.bytes).subspan(had)) != piece) {
      refuse_idx(path, fmt::format("{} bytes after the sizes", total), "fewer");
    }
  }
  // Reading beyond the end also checks the checksum of a gzip file.
  std::array<uint8_t, 1> more{};
  if (file.read(more) != 0) {
    refuse_idx(path, fmt::format("{} bytes after the sizes", total), "more");
  }
  return array;
}

}  // namespace lockstep::data
