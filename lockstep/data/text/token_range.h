#pragma once

#include <memory>
#include <utility>

#include "lockstep/data/text/tokens.h"

namespace lockstep::data {

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
