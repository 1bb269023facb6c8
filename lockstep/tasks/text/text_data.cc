#include "lockstep/tasks/text/text_data.h"

#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/text/simple_tokenizers.h"
#include "lockstep/data/text/token_sources.h"
#include "lockstep/data/text/tokenizer.h"
#include "lockstep/data/text/tokens.h"

namespace lockstep::tasks {
namespace {

namespace fs = std::filesystem;

// Larger texts should be tokenized once, and then read from files.
constexpr size_t kLargestText = size_t{4} << 30;

TextData open_tokens(const std::string& folder,
                     std::shared_ptr<const data::Tokenizer> tokenizer) {
  TextData data;
  data.tokenizer_path = fs::absolute(folder).lexically_normal().string();
  data.tokenizer =
      tokenizer ? std::move(tokenizer) : data::open_tokenizer(folder);
  data.training = std::make_shared<data::TokenFolder>(folder, "train_");
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!entry.path().filename().string().starts_with("val_")) continue;
    data.validation = std::make_shared<data::TokenFolder>(folder, "val_");
    break;
  }
  return data;
}

TextData make_tokenizer(const std::string& name, const std::string& text) {
  TextData data;
  if (name == "chars" || name.empty()) {
    data.tokenizer = data::CharacterTokenizer::of_text(text);
  } else if (name == "bytes") {
    data.tokenizer = std::make_shared<data::ByteTokenizer>();
  } else if (fs::exists(name)) {
    data.tokenizer = data::open_tokenizer(name);
    data.tokenizer_path = fs::absolute(name).lexically_normal().string();
  } else {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kUnknownName,
                 .what = "there is no tokenizer '" + name + "'",
                 .expected = "chars, bytes, or the path of a tokenizer.json",
                 .fix = did_you_mean(name, {"chars", "bytes"})});
  }
  return data;
}

}  // namespace

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
    return open_tokens(spec.file, std::move(tokenizer));
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
