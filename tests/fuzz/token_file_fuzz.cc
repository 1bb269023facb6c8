// Feeds bytes to TokenFile as a file. An accepted file has the tokens of a
// plain reading of the format, and is the same after it is written and read
// again.
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/lm/text/tokens.h"
#include "tests/fuzz/input.h"

namespace lockstep::fuzz {
namespace {

std::vector<int64_t> tokens_of(const data::TokenFile& file) {
  std::vector<int64_t> tokens(static_cast<size_t>(file.size()));
  file.read(0, tokens);
  return tokens;
}

// Returns token `index` of a file, without checks.
int64_t token_at(std::string_view bytes, data::TokenFormat format,
                 size_t index) {
  uint32_t token = 0;
  const auto width = static_cast<size_t>(data::token_bytes(format));
  const size_t header = format == data::TokenFormat::kRawUint16 ? 0 : 1024;
  const size_t begin = header + index * width;
  require(begin + width <= bytes.size(), "a token is not in the file");
  std::memcpy(&token, bytes.data() + begin, width);
  return token;
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const fuzz::Input input({reinterpret_cast<const char*>(data), size});
  try {
    const data::TokenFile file(input.path());
    const auto tokens = fuzz::tokens_of(file);
    for (size_t i = 0; i < tokens.size(); ++i) {
      fuzz::require(
          tokens[i] == fuzz::token_at(input.bytes(), file.format(), i),
          "a token differs from the file");
    }
    const fuzz::Output output;
    data::TokenFileWriter writer(output.path(), file.format());
    writer.add(std::vector<uint32_t>(tokens.begin(), tokens.end()));
    writer.commit();
    const data::TokenFile again(output.path());
    fuzz::require(fuzz::tokens_of(again) == tokens, "tokens changed");
    fuzz::require(again.fingerprint().size() == 64, "no fingerprint");
  } catch (const DataError& error) {
    fuzz::require_plain_message(error);
  }
  return 0;
}
