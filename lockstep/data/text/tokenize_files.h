#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

/// Options of tokenize_files().
struct TokenizeOptions {
  std::vector<std::string> inputs;  ///< texts, in the order of their tokens
  std::string out_dir;
  int64_t shard_tokens = 100'000'000;
  /// Fraction of the tokens, the last ones, for validation; rounded down.
  double val_fraction = 0;
  int threads = 1;
  /// Called after each file with the bytes encoded so far and the bytes of all
  /// files.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// The result of tokenize_files().
struct TokenizeReport {
  int64_t bytes = 0;  ///< size of the texts
  int64_t vocabulary = 0;
  int bits = 16;  ///< bits per token in the files
  int64_t train_tokens = 0;
  int64_t val_tokens = 0;
  std::vector<std::string> train_files;  ///< names in out_dir
  std::vector<std::string> val_files;
};

/// Encodes files and writes train_000000.bin, ..., val_000000.bin, ... and
/// tokenizer.json to a folder, in llm.c's form: 16 bits per token for
/// vocabularies of up to 65,536, 32 for larger ones. The folder appears when it
/// is complete.
///
/// One thread encodes a file as a whole, and threads work on different files.
/// The tokens therefore do not depend on the number of threads, and equal those
/// of one encode() of each whole file. (Parts of a file would not do: whether
/// blanks belong to one word depends on what follows them, and the length of a
/// word on the expression.) If the tokenizer has an end of text, it separates
/// the files. Each thread holds one file and its tokens in memory.
///
/// Throws IoError if something can't be read or written, or if `out_dir` is not
/// empty. Throws DataError for a text that can't be encoded, naming its file,
/// and for empty texts. Throws InvalidArgument for invalid options.
TokenizeReport tokenize_files(const Tokenizer& tokenizer,
                              const TokenizeOptions& options);

/// Returns the JSON of a CharacterTokenizer for the characters (code points) of
/// the files, ascending. Throws as tokenize_files() does.
std::string character_tokenizer_json(const std::vector<std::string>& inputs);

}  // namespace lockstep::data
