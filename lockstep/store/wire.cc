#include "lockstep/store/wire.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::store {
namespace {

constexpr size_t kLengthBytes = 4;

[[noreturn]] void throw_malformed(const char* what) {
  throw CommError({.code = ErrorCode::kStoreProtocol,
                   .what = what,
                   .got = "a malformed message"});
}

uint64_t number_in(std::string_view text) {
  uint64_t value = 0;
  for (size_t i = text.size(); i-- > 0;) {
    value = value << 8 | static_cast<uint8_t>(text[i]);
  }
  return value;
}

}  // namespace

FieldWriter& FieldWriter::number(uint64_t value, size_t width) {
  for (size_t i = 0; i < width; ++i) {
    text_ += static_cast<char>(value >> (8 * i));
  }
  return *this;
}

FieldWriter& FieldWriter::bytes(std::string_view value) {
  u32(static_cast<uint32_t>(value.size()));
  return raw(value);
}

FieldWriter& FieldWriter::raw(std::string_view value) {
  text_ += value;
  return *this;
}

uint64_t FieldReader::number(size_t width) { return number_in(raw(width)); }

std::string FieldReader::bytes(size_t most) {
  const size_t size = u32();
  if (size > most) throw_malformed("a field of a message is too long");
  return std::string(raw(size));
}

std::string_view FieldReader::raw(size_t size) {
  if (size > rest_.size()) throw_malformed("a message is cut short");
  const std::string_view field = rest_.substr(0, size);
  rest_.remove_prefix(size);
  return field;
}

void FieldReader::end() const {
  if (!rest_.empty()) throw_malformed("a message has more than it should");
}

std::string framed(std::string_view body) {
  return FieldWriter().bytes(body).take();
}

void FrameReader::add(std::string_view bytes) {
  buffer_.erase(0, at_);
  at_ = 0;
  buffer_ += bytes;
}

bool FrameReader::next(std::string& body) {
  const std::string_view rest = std::string_view(buffer_).substr(at_);
  if (rest.size() < kLengthBytes) return false;
  const size_t size = number_in(rest.substr(0, kLengthBytes));
  if (size > most_) {
    throw CommError({.code = ErrorCode::kStoreProtocol,
                     .what = "a message is too long",
                     .expected = fmt::format("{} bytes at most", most_),
                     .got = std::to_string(size)});
  }
  if (rest.size() < kLengthBytes + size) return false;
  body.assign(rest.substr(kLengthBytes, size));
  at_ += kLengthBytes + size;
  if (at_ == buffer_.size()) {
    buffer_.clear();
    at_ = 0;
  }
  return true;
}

}  // namespace lockstep::store
