#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/data/batch_source.h"
#include "lockstep/data/text/token_source.h"

namespace lockstep::data {

/// How tokens are cut into windows.
struct TokenWindowOptions {
  int64_t context = 64;  ///< tokens of a window
  /// Each id must be below it.
  int64_t vocabulary = 0;
  /// Begin each epoch's first window elsewhere, keyed by `seed`: in another
  /// epoch the windows are others.
  bool shift = false;
  uint64_t seed = 0;
};

/// Windows of a sequence of tokens as samples: the inputs are `context` tokens
/// and the target are the tokens that follow each of them, (N, context) int64
/// both.
///
/// The windows of an epoch lie one behind the other, so no token is a target
/// twice. Which tokens they leave out is less than a window at each end. With
/// `shift` the first one begins at a token of 0..context-1, drawn for the
/// epoch.
class TokenWindows : public BatchSource {
 public:
  /// Throws InvalidArgument if there are too few tokens for a window.
  TokenWindows(std::shared_ptr<const TokenSource> tokens,
               const TokenWindowOptions& options);

  int64_t size() const override { return windows_; }
  /// Throws DataError for an id that is not in the vocabulary.
  Batch read(std::span<const int64_t> indices, int64_t epoch) const override;
  std::string fingerprint() const override { return tokens_->fingerprint(); }

 private:
  int64_t shift_in(int64_t epoch) const;

  std::shared_ptr<const TokenSource> tokens_;
  TokenWindowOptions options_;
  int64_t windows_ = 0;
};

}  // namespace lockstep::data
