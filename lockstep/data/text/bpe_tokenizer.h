#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/text/bpe_description.h"
#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

/// Byte pair encoding over bytes, as GPT-2, GPT-4 and Llama 3 have it: the ids
/// are those of Hugging Face's library `tokenizers` with
/// add_special_tokens=False.
///
/// The text is cut by the added tokens in it, then by regular expressions into
/// words, and each word's bytes are merged. Words that were seen lately are
/// remembered, at most 32,768 for each thread that encodes at the same time.
class BpeTokenizer : public Tokenizer {
 public:
  /// Throws DataError (kMalformedData) for tokens, merges or expressions that
  /// can't be; `source` says in messages where they are from.
  BpeTokenizer(BpeDescription description, const std::string& source);
  ~BpeTokenizer() override;

  int64_t vocabulary() const override;
  /// `text` must be UTF-8. Throws DataError (kMalformedData) where it is not,
  /// and where a regular expression takes too long; (kFileTooLarge) for a word
  /// of more than 64 MiB.
  std::vector<uint32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const uint32_t> ids) const override;
  /// The special token "<|endoftext|>", "<|end_of_text|>" or "</s>", the first
  /// of these that there is.
  std::optional<uint32_t> end_of_text() const override;
  /// A tokenizer.json.
  std::string to_json() const override;

 private:
  class Encoder;
  class Pool;

  struct Parts;
  std::unique_ptr<const Parts> parts_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace lockstep::data
