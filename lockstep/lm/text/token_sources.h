#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/lm/text/tokens.h"

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

/// The tokens begin..end-1 of another source.
class TokenRange : public TokenSource {
 public:
  TokenRange(std::shared_ptr<const TokenSource> tokens, int64_t begin,
             int64_t end)
      : tokens_(std::move(tokens)), begin_(begin), end_(end) {}

  int64_t size() const override { return end_ - begin_; }
  std::string fingerprint() const override;

 private:
  void read_checked(int64_t begin, std::span<int64_t> out) const override {
    tokens_->read(begin_ + begin, out);
  }

  std::shared_ptr<const TokenSource> tokens_;
  int64_t begin_;
  int64_t end_;
};

}  // namespace lockstep::data
