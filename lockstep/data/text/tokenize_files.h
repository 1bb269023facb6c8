#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

/// What tokenize_files() reads and writes.
struct TokenizeOptions {
  std::vector<std::string> inputs;  ///< texts, in the order of their tokens
  std::string out_dir;
  int64_t shard_tokens = 100'000'000;
  /// The last tokens, so many of all, are for validation; rounded down.
  double val_fraction = 0;
  int threads = 1;
  /// Told after each file: bytes that are encoded, and of all files.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

/// What tokenize_files() has done.
struct TokenizeReport {
  int64_t bytes = 0;  ///< of the texts
  int64_t vocabulary = 0;
  int bits = 16;  ///< of a token in the files
  int64_t train_tokens = 0;
  int64_t val_tokens = 0;
  std::vector<std::string> train_files;  ///< names in out_dir
  std::vector<std::string> val_files;
};

/// Encodes files and writes train_000000.bin, ..., val_000000.bin, ... and
/// tokenizer.json to a folder, in llm.c's form: 16 bits a token for
/// vocabularies of up to 65,536, 32 for others. The folder appears when it is
/// complete.
///
/// A file is encoded in one piece by one thread, and threads work on different
/// files: the tokens do not depend on their number, and are those of one
/// encode() of each whole file. (A piece of a file would not do: whether blanks
/// belong to one word depends on what follows them, and how far a word reaches
/// on the expression.) Where the tokenizer has an end of text, it stands
/// between two files. In memory are, for each thread, a file and its tokens.
///
/// Throws IoError for what can't be read or written, also for an `out_dir` that
/// is not empty; DataError for a text that has no tokens, naming
/// its file, and for texts that are empty; InvalidArgument for options that
/// can't be.
TokenizeReport tokenize_files(const Tokenizer& tokenizer,
                              const TokenizeOptions& options);

/// The text of CharacterTokenizer's JSON for the characters (code points) that
/// the files consist of, ascending. Throws as tokenize_files().
std::string character_tokenizer_json(const std::vector<std::string>& inputs);

}  // namespace lockstep::data
