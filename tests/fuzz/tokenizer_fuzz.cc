// Feeds text to parse_tokenizer(). An accepted tokenizer is the same after it
// is written and read again, and decodes the text that it encodes.
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/lm/text/tokenizer.h"
#include "tests/fuzz/input.h"

namespace lockstep::fuzz {
namespace {

constexpr std::string_view kText =
    "I'll go to the  \n\n caf\xc3\xa9 at 12345, \xe4\xb8\xad<|endoftext|>abab";

void check_tokenizer(const data::Tokenizer& tokenizer) {
  const auto again = data::parse_tokenizer(tokenizer.to_json(), "again");
  require(again->to_json() == tokenizer.to_json(), "a tokenizer changes");
  const auto ids = tokenizer.encode(kText);
  for (const uint32_t id : ids) {
    require(id < tokenizer.vocabulary(), "an id is not in the vocabulary");
  }
  require(again->encode(kText) == ids, "ids change");
  tokenizer.decode(ids);
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  try {
    const auto tokenizer =
        data::parse_tokenizer({reinterpret_cast<const char*>(data), size}, "T");
    fuzz::check_tokenizer(*tokenizer);
  } catch (const DataError& error) {
    fuzz::require_plain_message(error);
  }
  return 0;
}
