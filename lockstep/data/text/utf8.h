#pragma once

#include <cstddef>
#include <string_view>

namespace lockstep::data {

/// Reads the characters of a UTF-8 text one after another, as defined by
/// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
class Utf8Reader {
 public:
  explicit Utf8Reader(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ == text_.size(); }
  /// Returns the offset of the next byte.
  size_t position() const { return at_; }
  /// Throws DataError (kMalformedData) naming the byte that is not UTF-8.
  char32_t next();

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace lockstep::data
