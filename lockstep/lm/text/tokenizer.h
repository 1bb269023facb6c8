#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <torch/arg.h>

namespace lockstep::data {

/// Interface that turns text into tokens and tokens back into text. Thread-safe
/// once made.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Returns the number of tokens. Ids are 0..vocabulary()-1.
  virtual int64_t vocabulary() const = 0;
  /// Throws DataError (kMalformedData) for text that has no tokens: a character
  /// that is not in the vocabulary, say.
  virtual std::vector<uint32_t> encode(std::string_view text) const = 0;
  /// Returns the bytes that the tokens stand for. Several tokens may make up
  /// one UTF-8 character. Throws InvalidArgument for an id outside the
  /// vocabulary.
  virtual std::string decode(std::span<const uint32_t> ids) const = 0;
  /// Returns the token that separates two texts.
  virtual std::optional<uint32_t> end_of_text() const { return std::nullopt; }

  /// Returns JSON from which parse_tokenizer() makes the same tokenizer.
  virtual std::string to_json() const = 0;
};

/// Throws InvalidArgument unless `id` is in 0..vocabulary-1.
void check_id(uint32_t id, int64_t vocabulary);

/// Returns the tokenizer that to_json() or a tokenizer.json of Hugging Face
/// describes. Throws DataError (kMalformedData) naming the invalid part.
/// `source` names the origin of the text in messages.
std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view json,
                                                 const std::string& source);

/// Opens a tokenizer.json, or a folder with such a file or else with GPT-2's
/// vocab.json and merges.txt. Throws IoError for a file that can't be read or
/// has more than 64 MiB, and DataError as parse_tokenizer() does.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path);

/// Options of tokenize_files().
struct TokenizeOptions {
  /// Paths of the texts, in the order of their tokens.
  TORCH_ARG(std::vector<std::string>, inputs);
  TORCH_ARG(std::string, out_dir);
  TORCH_ARG(int64_t, shard_tokens) = 100'000'000;
  /// Fraction of the tokens, the last ones, for validation; rounded down.
  TORCH_ARG(double, val_fraction) = 0;
  TORCH_ARG(int, threads) = 1;
  /// Called after each file with the bytes encoded so far and the bytes of all
  /// files.
  TORCH_ARG(std::function<void(int64_t done, int64_t total)>, progress);
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

/// Returns the JSON of a tokenizer that has a token for each character (code
/// point) of the files, in ascending order. Throws as tokenize_files() does.
std::string character_tokenizer_json(const std::vector<std::string>& inputs);

}  // namespace lockstep::data
