#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/lm/text/bpe_description.h"
#include "lockstep/lm/text/tokenizer.h"

namespace lockstep::data {

/// Byte pair encoding over bytes, as in GPT-2, GPT-4 and Llama 3. The ids are
/// those of Hugging Face's library `tokenizers` with add_special_tokens=False.
///
/// The text is cut at the added tokens in it, then into words by regular
/// expressions, and the bytes of each word are merged. Recent words are
/// remembered: at most 32,768 for each thread that encodes at the same time.
class BpeTokenizer : public Tokenizer {
 public:
  /// Throws DataError (kMalformedData) for invalid tokens, merges or
  /// expressions. `source` names their origin in messages.
  BpeTokenizer(BpeDescription description, const std::string& source);
  ~BpeTokenizer() override;

  int64_t vocabulary() const override;
  /// `text` must be UTF-8. Throws DataError: kMalformedData if it is not, or if
  /// a regular expression takes too long; kFileTooLarge for a word of more than
  /// 64 MiB.
  std::vector<uint32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const uint32_t> ids) const override;
  /// Returns the first that exists of the special tokens "<|endoftext|>",
  /// "<|end_of_text|>" and "</s>".
  std::optional<uint32_t> end_of_text() const override;
  /// Returns a tokenizer.json.
  std::string to_json() const override;

 private:
  class Encoder;
  class Pool;

  struct Parts;
  std::unique_ptr<const Parts> parts_;
  std::unique_ptr<Pool> pool_;
};

}  // namespace lockstep::data
