#include "lockstep/data/text/token_range.h"

#include <algorithm>
#include <vector>

#include "lockstep/base/checksum.h"

namespace lockstep::data {

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
