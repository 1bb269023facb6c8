#include "lockstep/data/text/byte_tokenizer.h"

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

}  // namespace lockstep::data
