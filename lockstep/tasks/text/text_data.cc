#include "lockstep/tasks/text/text_data.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/data/text/byte_tokenizer.h"
#include "lockstep/data/text/character_tokenizer.h"
#include "lockstep/data/text/token_buffer.h"
#include "lockstep/data/text/token_range.h"

namespace lockstep::tasks {
namespace {

// Larger texts are better cut into tokens once, and read from files.
constexpr size_t kLargestText = size_t{4} << 30;

std::shared_ptr<const data::Tokenizer> make_tokenizer(const std::string& name,
                                                      const std::string& text) {
  if (name == "chars") return data::CharacterTokenizer::of_text(text);
  if (name == "bytes") return std::make_shared<data::ByteTokenizer>();
  throw InvalidArgument("data",
                        {.code = ErrorCode::kUnknownName,
                         .what = "there is no tokenizer '" + name + "'",
                         .expected = "chars or bytes",
                         .fix = did_you_mean(name, {"chars", "bytes"})});
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
  const std::string text = read_file(spec.file, kLargestText);
  if (text.empty()) {
    throw DataError({.code = ErrorCode::kMalformedData,
                     .what = spec.file + " is empty",
                     .expected = "a text"});
  }
  TextData data;
  data.tokenizer =
      tokenizer ? std::move(tokenizer) : make_tokenizer(spec.tokenizer, text);
  const auto all =
      std::make_shared<data::TokenBuffer>(data.tokenizer->encode(text));
  const auto training = static_cast<int64_t>(std::floor(
      static_cast<double>(all->size()) * (1 - spec.validation_fraction)));
  data.training = std::make_shared<data::TokenRange>(all, 0, training);
  if (training < all->size()) {
    data.validation =
        std::make_shared<data::TokenRange>(all, training, all->size());
  }
  return data;
}

}  // namespace lockstep::tasks
