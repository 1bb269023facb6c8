#include "lockstep/lm/text/tokenizer.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/lm/text/bpe_description.h"
#include "lockstep/lm/text/bpe_tokenizer.h"
#include "lockstep/lm/text/simple_tokenizers.h"

namespace lockstep::data {

void check_id(uint32_t id, int64_t vocabulary) {
  if (id < vocabulary) return;
  throw InvalidArgument("data",
                        {.code = ErrorCode::kBadOption,
                         .what = fmt::format("there is no token {}", id),
                         .expected = fmt::format("0 to {}", vocabulary - 1)});
}

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view text,
                                                 const std::string& source) {
  const auto document =
      parse_strict_json(source, text, kTokenizerJsonLimits).root;
  const auto member = [&](const char* key) {
    return document.is_object() && document.contains(key) ? document.at(key)
                                                          : nlohmann::json();
  };
  const auto type = member("type");
  if (type.is_null()) {
    return std::make_shared<const BpeTokenizer>(read_bpe(document, source),
                                                source);
  }
  if (type == "bytes") return std::make_shared<ByteTokenizer>();
  if (type == "characters") {
    const auto characters = member("characters");
    return std::make_shared<CharacterTokenizer>(
        characters.is_string() ? characters.get<std::string>() : "");
  }
  throw DataError({.code = ErrorCode::kUnknownName,
                   .what = source + " describes a tokenizer that is not known",
                   .expected = "the type characters or bytes, or a "
                               "tokenizer.json with a model BPE",
                   .got = brief(type)});
}

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path) {
  std::error_code ignored;
  const auto read = [](const std::string& file) {
    return read_file(file, kMaxTokenizerBytes);
  };
  if (!std::filesystem::is_directory(path, ignored)) {
    return parse_tokenizer(read(path), path);
  }
  const std::string json = path + "/tokenizer.json";
  if (std::filesystem::exists(json, ignored)) {
    return parse_tokenizer(read(json), json);
  }
  return std::make_shared<const BpeTokenizer>(
      read_gpt2_files(read(path + "/vocab.json"), read(path + "/merges.txt"),
                      path),
      path);
}

}  // namespace lockstep::data
