#include "lockstep/data/text/token_buffer.h"

#include <algorithm>

#include "lockstep/base/checksum.h"

namespace lockstep::data {

void TokenBuffer::read_checked(int64_t begin, std::span<int64_t> out) const {
  std::copy_n(tokens_.begin() + begin, out.size(), out.begin());
}

std::string TokenBuffer::fingerprint() const {
  Sha256 digest;
  digest.add(std::as_bytes(std::span(tokens_)));
  return digest.hex();
}

}  // namespace lockstep::data
