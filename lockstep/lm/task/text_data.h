#pragma once

#include <memory>
#include <string>

#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/lm/text/tokens.h"

namespace lockstep::tasks {

/// The data that a language model is trained on.
struct TextSpec {
  /// A UTF-8 text, or any file for bytes, or a folder of tokens that `lockstep
  /// tokenize`, nanoGPT or llm.c wrote.
  std::string file;
  /// Tokenizer of a text: "chars", "bytes", or the path of a tokenizer.json or
  /// of a folder with one. Empty: the tokenizer of the model whose weights
  /// training begins with, or else "chars". A folder of tokens that `lockstep
  /// tokenize` wrote has its own.
  std::string tokenizer = "chars";
  /// Fraction of a text's tokens, the last ones, that is used for evaluation
  /// and not for training. A folder of tokens is already split.
  double validation_fraction = 0.1;
};

struct TextData {
  std::shared_ptr<const data::Tokenizer> tokenizer;
  std::string tokenizer_path;  ///< absolute; empty: not from a file
  std::shared_ptr<const data::TokenSource> training;
  std::shared_ptr<const data::TokenSource> validation;  ///< may be null
};

/// Returns true for a folder of tokens with a tokenizer.
bool has_tokenizer(const std::string& path);

/// Reads the text and tokenizes it, with `tokenizer` if that is given, else as
/// `spec` says. Throws IoError, DataError and InvalidArgument.
TextData open_text(const TextSpec& spec,
                   std::shared_ptr<const data::Tokenizer> tokenizer = nullptr);

}  // namespace lockstep::tasks
