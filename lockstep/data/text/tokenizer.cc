#include "lockstep/data/text/tokenizer.h"

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/data/text/bpe_description.h"
#include "lockstep/data/text/bpe_tokenizer.h"

namespace lockstep::data {
namespace {

// A tokenizer that this build does not have.
[[noreturn]] void refuse_kind(const std::string& source,
                              const std::string& kind) {
  throw DataError({.code = ErrorCode::kUnknownName,
                   .what = source + " describes a tokenizer that is not known",
                   .expected = "a tokenizer.json with a model BPE",
                   .got = kind});
}

}  // namespace

std::shared_ptr<const Tokenizer> parse_tokenizer(std::string_view text,
                                                 const std::string& source) {
  // Read once more by who knows the kind: the whole file at most, 64 MiB.
  const auto document =
      parse_strict_json(source, text, kTokenizerJsonLimits).root;
  const auto kind = document.is_object() && document.contains("type")
                        ? document["type"]
                        : nlohmann::json();
  if (kind == "characters") {
    // TODO(text): CharacterTokenizer.
    refuse_kind(source, "\"characters\"");
  }
  if (kind == "bytes") {
    // TODO(text): ByteTokenizer.
    refuse_kind(source, "\"bytes\"");
  }
  if (!kind.is_null()) refuse_kind(source, brief(kind));
  return std::make_shared<const BpeTokenizer>(read_bpe(document, source),
                                              source);
}

}  // namespace lockstep::data
