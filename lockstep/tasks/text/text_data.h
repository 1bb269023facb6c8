#pragma once

#include <memory>
#include <string>

#include "lockstep/data/text/token_source.h"
#include "lockstep/data/text/tokenizer.h"

namespace lockstep::tasks {

/// What a language model is trained on.
struct TextSpec {
  /// A text in UTF-8, or any file for the bytes; or a folder that `lockstep
  /// tokenize` wrote.
  std::string file;
  /// Of a text: "chars", "bytes", or the path of a tokenizer.json or of a
  /// folder with one. Empty: that of the model whose weights training begins
  /// with, or else "chars". A folder of tokens has its own.
  std::string tokenizer = "chars";
  /// Of the tokens of a text, the last: they are evaluated on and not trained
  /// on. A folder of tokens is cut already.
  double validation_fraction = 0.1;
};

struct TextData {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::string tokenizer_path;  ///< absolute; empty: not from a file
  std::shared_ptr<const data::TokenSource> training;
  std::shared_ptr<const data::TokenSource> validation;  ///< null: none
};

/// Reads the text and cuts it into tokens: with `tokenizer` if that is given,
/// else as the spec says. Throws IoError, DataError and InvalidArgument.
TextData open_text(const TextSpec& spec,
                   std::shared_ptr<const data::Tokenizer> tokenizer = nullptr);

}  // namespace lockstep::tasks
