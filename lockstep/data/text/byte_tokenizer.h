#pragma once

#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

/// Tokenizer for any data, with one token for each of the 256 bytes.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocabulary() const override { return 256; }
  std::vector<uint32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const uint32_t> ids) const override;
  std::string to_json() const override { return R"({"type":"bytes"})"; }
};

}  // namespace lockstep::data
