#pragma once

#include <memory>
#include <string>

#include "lockstep/data/text/token_source.h"
#include "lockstep/data/text/tokenizer.h"

namespace lockstep::tasks {

/// What a language model is trained on.
struct TextSpec {
  /// A text in UTF-8, or any file for the bytes.
  std::string file;
  /// "chars" or "bytes".
  std::string tokenizer = "chars";
  /// Of the tokens, the last: they are evaluated on and not trained on.
  double validation_fraction = 0.1;
};

struct TextData {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::shared_ptr<const data::TokenSource> training;
  std::shared_ptr<const data::TokenSource> validation;  ///< null: none
};

/// Reads the text and cuts it into tokens: with `tokenizer` if that is given,
/// else as the spec says. Throws IoError, DataError and InvalidArgument.
TextData open_text(const TextSpec& spec,
                   std::shared_ptr<const data::Tokenizer> tokenizer = nullptr);

}  // namespace lockstep::tasks
