#include "lockstep/lm/text/simple_tokenizers.h"

#include <map>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/lm/text/utf8.h"

namespace lockstep::data {

std::vector<uint32_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<uint32_t> ids(text.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<uint8_t>(text[i]);
  }
  return ids;
}

std::string ByteTokenizer::decode(std::span<const uint32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const uint32_t id : ids) {
    check_id(id, vocabulary());
    text.push_back(static_cast<char>(id));
  }
  return text;
}

std::shared_ptr<const CharacterTokenizer> CharacterTokenizer::from_text(
    std::string_view text) {
  std::map<char32_t, std::string_view> found;
  for (Utf8Reader reader(text); !reader.at_end();) {
    const size_t start = reader.position();
    const char32_t character = reader.next();
    found.emplace(character, text.substr(start, reader.position() - start));
  }
  std::string characters;
  for (const auto& [character, utf8] : found) characters += utf8;
  return std::make_shared<CharacterTokenizer>(characters);
}

CharacterTokenizer::CharacterTokenizer(const std::string& characters) {
  char32_t last = 0;
  for (Utf8Reader reader(characters); !reader.at_end();) {
    const size_t start = reader.position();
    const char32_t character = reader.next();
    if (!characters_.empty() && character <= last) {
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = fmt::format("character {} of a tokenizer is out of order",
                               characters_.size()),
           .expected = "each character once, ascending"});
    }
    last = character;
    ids_.emplace(character, static_cast<uint32_t>(characters_.size()));
    characters_.push_back(characters.substr(start, reader.position() - start));
  }
  if (!characters_.empty()) return;
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = "a tokenizer has no characters",
                   .expected = "at least one"});
}

int64_t CharacterTokenizer::vocabulary() const {
  return static_cast<int64_t>(characters_.size());
}

std::vector<uint32_t> CharacterTokenizer::encode(std::string_view text) const {
  std::vector<uint32_t> ids;
  ids.reserve(text.size());
  for (Utf8Reader reader(text); !reader.at_end();) {
    const size_t start = reader.position();
    const char32_t character = reader.next();
    const auto id = ids_.find(character);
    if (id == ids_.end()) {
      throw DataError(
          {.code = ErrorCode::kMalformedData,
           .what = fmt::format("U+{:04X}, at byte {} of the text, has no token",
                               static_cast<uint32_t>(character), start),
           .expected = fmt::format("the {} characters of the text that the "
                                   "tokenizer was made from",
                                   characters_.size()),
           .fix = "leave it out, or use another tokenizer"});
    }
    ids.push_back(id->second);
  }
  return ids;
}

std::string CharacterTokenizer::decode(std::span<const uint32_t> ids) const {
  std::string text;
  for (const uint32_t id : ids) {
    check_id(id, vocabulary());
    text += characters_[id];
  }
  return text;
}

std::string CharacterTokenizer::to_json() const {
  std::string all;
  for (const auto& character : characters_) all += character;
  return nlohmann::ordered_json{{"type", "characters"}, {"characters", all}}
      .dump();
}

}  // namespace lockstep::data
