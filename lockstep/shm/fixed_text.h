#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace lockstep::shm {

/// Text in shared memory. Another process wrote it: it may lack its end.
template <size_t N>
std::string_view text_of(const std::array<char, N>& text) {
  return {text.data(), ::strnlen(text.data(), N)};
}

/// Sets zeroed `text` to `value`, cut to what fits.
template <size_t N>
void set_text(std::array<char, N>& text, std::string_view value) {
  std::copy_n(value.begin(), std::min(value.size(), N), text.begin());
}

/// Why a rank failed. `reason` may hold another's failure already, but not two
/// brackets' worth.
using FailureText = std::array<char, 400>;
inline void set_failure(FailureText& text, std::string_view reason) {
  constexpr std::string_view kTag = "[comm] ";
  if (reason.starts_with(kTag)) reason.remove_prefix(kTag.size());
  set_text(text, reason);
}

}  // namespace lockstep::shm
