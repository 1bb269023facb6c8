#include "lockstep/checkpoint/part.h"

#include <filesystem>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/device/not_finite.h"

namespace lockstep {
namespace {

using nlohmann::json;

std::vector<std::string> check_finite(const CheckpointPart& part) {
  std::vector<std::string> not_finite;
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    const auto& [name, tensor] = part.tensors[i];
    const std::string found = describe_not_finite(name, tensor);
    if (found.empty()) continue;
    // Earlier checkpoints are worth more than this one.
    if (i < part.parameters) {
      throw CheckpointError({.code = ErrorCode::kNotFinite,
                             .what = "a parameter is not finite: " + found});
    }
    not_finite.push_back(name);
  }
  return not_finite;
}

}  // namespace

WrittenParts write_parts(const std::string& folder,
                         const std::vector<CheckpointPart>& parts) {
  WrittenParts written;
  for (const CheckpointPart& part : parts) {
    for (std::string& name : check_finite(part)) {
      written.not_finite.push_back(std::move(name));
    }
    Checksum checksum;
    const std::string path = folder + "/" + part.file;
    write_safetensors(path,
                      {.tensors = part.tensors, .metadata = {{"format", "pt"}}},
                      &checksum);
    written.files.push_back({.name = part.file,
                             .bytes = std::filesystem::file_size(path),
                             .xxh128 = checksum.hex()});
    if (part.file == kModelFile) {
      written.parameter_sha256 = parameter_digest(part.tensors);
    }
  }
  return written;
}

std::string to_text(const WrittenParts& parts) {
  json files = json::array();
  for (const CheckpointFile& file : parts.files) {
    files.push_back({file.name, file.bytes, file.xxh128});
  }
  return json{{"files", files},
              {"not_finite", parts.not_finite},
              {"parameter_sha256", parts.parameter_sha256}}
      .dump();
}

WrittenParts parts_from_text(const std::string& text) {
  const json object = parse_json(text);
  WrittenParts parts;
  for (const json& file : object.at("files")) {
    parts.files.push_back({.name = file.at(0).get<std::string>(),
                           .bytes = file.at(1).get<uint64_t>(),
                           .xxh128 = file.at(2).get<std::string>()});
  }
  object.at("not_finite").get_to(parts.not_finite);
  object.at("parameter_sha256").get_to(parts.parameter_sha256);
  return parts;
}

}  // namespace lockstep
