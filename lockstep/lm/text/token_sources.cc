#include "lockstep/lm/text/token_sources.h"

#include <algorithm>

#include <fmt/format.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"

namespace lockstep::data {

void TokenSource::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (begin >= 0 && begin <= size() && count <= size() - begin) {
    read_checked(begin, out);
    return;
  }
  throw InvalidArgument(
      "data", {.code = ErrorCode::kBadOption,
               .what = fmt::format("{} has no {} tokens from token {} on",
                                   name(), count, begin),
               .expected = fmt::format("a part of the {} tokens", size())});
}

void TokenBuffer::read_checked(int64_t begin, std::span<int64_t> out) const {
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
}

std::string TokenBuffer::fingerprint() const {
  Sha256 digest;
  digest.add(std::as_bytes(std::span(tokens_)));
  return digest.hex();
}

std::string TokenRange::fingerprint() const {
  constexpr int64_t kAtOnce = 1 << 16;
  std::vector<int64_t> tokens;
  Sha256 digest;
  for (int64_t begin = 0; begin < size(); begin += kAtOnce) {
    tokens.resize(static_cast<size_t>(std::min(kAtOnce, size() - begin)));
    read(begin, tokens);
    digest.add(std::as_bytes(std::span(tokens)));
  }
  return digest.hex();
}

}  // namespace lockstep::data
