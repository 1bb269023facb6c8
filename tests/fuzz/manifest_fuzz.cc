// If parse_manifest() accepts a text, it must be able to write and read it
// again. Anything else must be a CheckpointError in plain text.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/checkpoint/manifest.h"

namespace lockstep::fuzz {
namespace {

using nlohmann::json;

void require_manifest(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "[fuzz] manifest: %s\n", what);
  std::abort();
}

// A fuzzer can't guess checksums, so valid JSON gets the right one.
std::string with_checksum(std::string_view text) {
  try {
    json object = parse_strict_json("M", text, {.fail = fail_checkpoint}).root;
    if (!object.is_object()) return std::string(text);
    object.erase("manifest_xxh128");
    object["manifest_xxh128"] = checksum_of(
        object.dump(-1, ' ', false, json::error_handler_t::replace));
    return object.dump(-1, ' ', false, json::error_handler_t::replace);
  } catch (const CheckpointError&) {
    return std::string(text);
  }
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const std::string text =
      fuzz::with_checksum({reinterpret_cast<const char*>(data), size});
  Manifest manifest;
  try {
    manifest = parse_manifest("M", text);
  } catch (const CheckpointError& error) {
    for (const char letter : std::string_view(error.what())) {
      fuzz::require_manifest(letter >= ' ' && letter <= '~',
                             "an error's message is not plain");
    }
    return 0;
  }
  for (const auto& file : manifest.files) {
    fuzz::require_manifest(file.name.find('/') == std::string::npos,
                           "a file is not in the folder");
  }
  const std::string again = format_manifest(manifest);
  fuzz::require_manifest(format_manifest(parse_manifest("M", again)) == again,
                         "a manifest changes on its way");
  return 0;
}
