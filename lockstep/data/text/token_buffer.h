#pragma once

#include <vector>

#include "lockstep/data/text/tokens.h"

namespace lockstep::data {

/// Tokens in memory.
class TokenBuffer : public TokenSource {
 public:
  explicit TokenBuffer(std::vector<uint32_t> tokens)
      : tokens_(std::move(tokens)) {}

  int64_t size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string fingerprint() const override;

 private:
  void read_checked(int64_t begin, std::span<int64_t> out) const override;

  std::vector<uint32_t> tokens_;
};

}  // namespace lockstep::data
