#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace lockstep::transport {

/// Returns a text from shared memory. Another process wrote it, so it may not
/// be null-terminated.
template <size_t N>
std::string_view text_of(const std::array<char, N>& text) {
  return {text.data(), ::strnlen(text.data(), N)};
}

/// Sets zeroed `text` to `value`, cut to fit.
template <size_t N>
void set_text(std::array<char, N>& text, std::string_view value) {
  std::copy_n(value.begin(), std::min(value.size(), N), text.begin());
}

/// The reason for a rank's failure.
using FailureText = std::array<char, 400>;
/// Stores `reason` without its tag. The error that repeats it has its own.
inline void set_failure(FailureText& text, std::string_view reason) {
  constexpr std::string_view kTag = "[comm] ";
  if (reason.starts_with(kTag)) reason.remove_prefix(kTag.size());
  set_text(text, reason);
}

}  // namespace lockstep::transport
