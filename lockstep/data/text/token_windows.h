#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/text/token_source.h"

namespace lockstep::data {

/// Options for cutting tokens into windows.
struct TokenWindowOptions {
  int64_t context = 64;  ///< tokens in a window
  /// Number of possible tokens. Each id must be below it.
  int64_t vocabulary = 0;
  /// Starts the first window of each epoch at a different place, keyed by
  /// `seed`, so each epoch has different windows.
  bool shift = false;
  uint64_t seed = 0;
};

/// Windows of a sequence of tokens as samples. The inputs are `context` tokens,
/// and the targets are the tokens that follow each of them. Both are
/// (N, context) int64.
///
/// The windows of an epoch are adjacent, so no token is a target twice. They
/// leave out less than a window at each end. With `shift`, the first one begins
/// at a token in 0..context-1, which is drawn for each epoch.
class TokenWindows : public BatchSource {
 public:
  /// Throws InvalidArgument if there are too few tokens for a window.
  TokenWindows(std::shared_ptr<const TokenSource> tokens,
               const TokenWindowOptions& options);

  int64_t size() const override { return windows_; }
  /// Throws DataError for an id outside the vocabulary.
  Batch read(std::span<const int64_t> indices, int64_t epoch) const override;
  std::string fingerprint() const override { return tokens_->fingerprint(); }

 private:
  int64_t shift_in(int64_t epoch) const;

  std::shared_ptr<const TokenSource> tokens_;
  TokenWindowOptions options_;
  int64_t windows_ = 0;
};

}  // namespace lockstep::data
