#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace lockstep {

/// Returns GPT-2's letter for a byte, as in the code of its paper.
inline std::string letter_of_byte(unsigned byte) {
  const auto is_visible = [](unsigned b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  unsigned point = byte;
  if (!is_visible(byte)) {
    point = 256;
    for (unsigned b = 0; b < byte; ++b) point += is_visible(b) ? 0 : 1;
  }
  if (point < 128) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | point >> 6),
          static_cast<char>(0x80 | (point & 0x3F))};
}

/// Returns a tokenizer.json: byte b is token b, "ab" is 256, "abc" is 257, "bc"
/// is 258 and the end of a text is 259. Each test changes the part that it
/// tests.
inline nlohmann::json tiny_tokenizer() {
  nlohmann::json vocabulary;
  for (unsigned byte = 0; byte < 256; ++byte) {
    vocabulary[letter_of_byte(byte)] = byte;
  }
  vocabulary["ab"] = 256;
  vocabulary["abc"] = 257;
  vocabulary["bc"] = 258;
  return nlohmann::json{
      {"added_tokens",
       {{{"id", 259}, {"content", "<|endoftext|>"}, {"special", true}}}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", vocabulary},
        {"merges", {"a b", "ab c", "b c"}}}}};
}

}  // namespace lockstep
