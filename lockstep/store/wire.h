#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::store {

/// Puts the fields of a message together: numbers in little endian, bytes
/// behind their length.
class FieldWriter {
 public:
  FieldWriter& number(uint64_t value, size_t width);
  FieldWriter& u8(uint8_t value) { return number(value, 1); }
  FieldWriter& u32(uint32_t value) { return number(value, 4); }
  FieldWriter& u64(uint64_t value) { return number(value, 8); }
  FieldWriter& bytes(std::string_view value);
  /// Without a length: for what is always as long.
  FieldWriter& raw(std::string_view value);
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Takes them apart again. Throws CommError where the message is not what it
/// should be; nothing is allocated for a length that is not there.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}

  uint64_t number(size_t width);
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  /// At most `most` bytes.
  std::string bytes(size_t most);
  std::string_view raw(size_t size);
  /// Nothing may be left.
  void end() const;

 private:
  std::string_view rest_;
};

/// `body` behind its length: what goes over a connection.
std::string framed(std::string_view body);

/// Cuts what comes out of a connection into frames again.
class FrameReader {
 public:
  /// Of `most` bytes at most. Throws CommError for a longer one, as soon as its
  /// length is there.
  explicit FrameReader(size_t most) : most_(most) {}

  void set_most(size_t most) { most_ = most; }
  void add(std::string_view bytes);
  /// The next frame's body, if all of it is there.
  bool next(std::string& body);
  size_t buffered() const { return buffer_.size() - at_; }

 private:
  size_t most_;
  std::string buffer_;
  size_t at_ = 0;
};

}  // namespace lockstep::store
