#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::store {

/// Writes the fields of a message: numbers in little endian, and byte strings
/// preceded by their length.
class FieldWriter {
 public:
  FieldWriter& number(uint64_t value, size_t width);
  FieldWriter& u8(uint8_t value) { return number(value, 1); }
  FieldWriter& u32(uint32_t value) { return number(value, 4); }
  FieldWriter& u64(uint64_t value) { return number(value, 8); }
  FieldWriter& bytes(std::string_view value);
  /// Writes bytes without their length, for fields of a fixed size.
  FieldWriter& raw(std::string_view value);
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

/// Reads the fields of a message. Throws CommError if the message is malformed.
/// Memory is allocated only for bytes that have arrived, whatever a length
/// field says.
class FieldReader {
 public:
  explicit FieldReader(std::string_view text) : rest_(text) {}

  uint64_t number(size_t width);
  uint8_t u8() { return static_cast<uint8_t>(number(1)); }
  uint32_t u32() { return static_cast<uint32_t>(number(4)); }
  uint64_t u64() { return number(8); }
  /// Reads a byte string of at most `most` bytes.
  std::string bytes(size_t most);
  std::string_view raw(size_t size);
  /// Throws CommError if bytes are left.
  void end() const;

 private:
  std::string_view rest_;
};

/// Returns `body` preceded by its length, as it is sent over a connection.
std::string framed(std::string_view body);

/// Splits the bytes of a connection into frames.
class FrameReader {
 public:
  /// Accepts frames of up to `most` bytes. next() throws CommError for a longer
  /// frame as soon as it has read the length.
  explicit FrameReader(size_t most) : most_(most) {}

  void set_most(size_t most) { most_ = most; }
  void add(std::string_view bytes);
  /// Gets the body of the next frame. Returns false if the frame is not
  /// complete yet.
  bool next(std::string& body);
  size_t buffered() const { return buffer_.size() - at_; }

 private:
  size_t most_;
  std::string buffer_;
  size_t at_ = 0;
};

}  // namespace lockstep::store
