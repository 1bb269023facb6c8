#include "lockstep/lm/task/text_data.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/lm/text/simple_tokenizers.h"
#include "lockstep/lm/text/token_sources.h"
#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/lm/text/tokens.h"

namespace lockstep::tasks {
namespace {

namespace fs = std::filesystem;

// Larger texts should be tokenized once, and then read from files.
constexpr size_t kLargestText = size_t{4} << 30;

// Returns the tokenizer in the file or folder at `path`, with its path.
TextData tokenizer_at(const std::string& path) {
  TextData data;
  data.tokenizer = data::open_tokenizer(path);
  data.tokenizer_path = fs::absolute(path).lexically_normal().string();
  return data;
}

[[noreturn]] void refuse_tokenizer(const std::string& name) {
  throw InvalidArgument(
      "data", {.code = ErrorCode::kUnknownName,
               .what = "there is no tokenizer '" + name + "'",
               .expected = "chars, bytes, or the path of a tokenizer.json",
               .fix = did_you_mean(name, {"chars", "bytes"})});
}

// Throws for a folder of tokens as nanoGPT and llm.c write it.
[[noreturn]] void refuse_without_tokenizer(const std::string& folder) {
  const bool is_of_characters = fs::exists(folder + "/meta.pkl");
  const std::string text = folder + "/input.txt";
  throw DataError(
      {.code = ErrorCode::kMalformedData,
       .what = folder + " has tokens, but no tokenizer",
       .expected = "tokenizer.json, or vocab.json and merges.txt",
       .got = is_of_characters ? "nanoGPT's meta.pkl, a pickle"
                               : "token files only, as nanoGPT and llm.c "
                                 "write them",
       .fix = is_of_characters
                  ? "train on the text; its characters get the same tokens: "
                    "--data-file " +
                        (fs::exists(text) ? text : "input.txt")
                  : "give the tokenizer they were made with: --tokenizer "
                    "gpt2/tokenizer.json"});
}

TextData open_tokens(const std::string& folder, const std::string& tokenizer,
                     std::shared_ptr<const data::Tokenizer> model_tokenizer) {
  const auto files = data::token_files(folder, "train");
  if (files.empty()) {
    throw DataError(
        {.code = ErrorCode::kFileAccess,
         .what = "can't read tokens from " + folder,
         .expected = "a folder with train_*.bin (or nanoGPT's train.bin, or "
                     "llm.c's *_train*.bin)",
         .got = "none",
         .fix = "write it with `lockstep tokenize`, or name one text file"});
  }
  TextData data;
  const bool is_path =
      !tokenizer.empty() && tokenizer != "chars" && tokenizer != "bytes";
  if (model_tokenizer) {
    data.tokenizer_path = fs::absolute(folder).lexically_normal().string();
    data.tokenizer = std::move(model_tokenizer);
  } else if (is_path) {
    if (!fs::exists(tokenizer)) refuse_tokenizer(tokenizer);
    data = tokenizer_at(tokenizer);
  } else if (has_tokenizer(folder)) {
    data = tokenizer_at(folder);
  } else {
    refuse_without_tokenizer(folder);
  }
  data.training = std::make_shared<data::TokenFolder>(folder, files);
  const auto validation = data::token_files(folder, "val");
  if (!validation.empty()) {
    data.validation = std::make_shared<data::TokenFolder>(folder, validation);
  }
  return data;
}

TextData make_tokenizer(const std::string& name, const std::string& text) {
  TextData data;
  if (name == "chars" || name.empty()) {
    data.tokenizer = data::CharacterTokenizer::from_text(text);
  } else if (name == "bytes") {
    data.tokenizer = std::make_shared<data::ByteTokenizer>();
  } else if (fs::exists(name)) {
    return tokenizer_at(name);
  } else {
    refuse_tokenizer(name);
  }
  return data;
}

}  // namespace

bool has_tokenizer(const std::string& path) {
  return fs::exists(path + "/tokenizer.json") ||
         fs::exists(path + "/vocab.json");
}

TextData open_text(const TextSpec& spec,
                   std::shared_ptr<const data::Tokenizer> tokenizer) {
  if (!(spec.validation_fraction >= 0 && spec.validation_fraction < 1)) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "the part of the text to evaluate on can't be",
                 .expected = "at least 0, and less than 1",
                 .got = fmt::format("{}", spec.validation_fraction)});
  }
  if (fs::is_directory(spec.file)) {
    return open_tokens(spec.file, spec.tokenizer, std::move(tokenizer));
  }
  const std::string text = read_file(spec.file, kLargestText);
  if (text.empty()) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = spec.file + " is empty",
                     .expected = "a text"});
  }
  TextData data;
  if (tokenizer) {
    data.tokenizer = std::move(tokenizer);
  } else {
    data = make_tokenizer(spec.tokenizer, text);
  }
  const auto all =
      std::make_shared<data::TokenBuffer>(data.tokenizer->encode(text));
  // Cut as by `lockstep tokenize`.
  const int64_t training =
      all->size() -
      static_cast<int64_t>(std::floor(static_cast<double>(all->size()) *
                                      spec.validation_fraction));
  data.training = std::make_shared<data::TokenRange>(all, 0, training);
  if (training < all->size()) {
    data.validation =
        std::make_shared<data::TokenRange>(all, training, all->size());
  }
  return data;
}

}  // namespace lockstep::tasks
