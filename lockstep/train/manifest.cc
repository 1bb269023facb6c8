#include "lockstep/train/manifest.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/sha256.h"

namespace lockstep::train {
namespace {

using nlohmann::json;

constexpr int kFormatVersion = 1;
constexpr size_t kMaxManifestBytes = 1 << 20;

std::string file_sha256(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> buffer(1 << 20);
  Sha256 digest;
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())),
         file.gcount() > 0) {
    digest.add(
        std::string_view(buffer.data(), static_cast<size_t>(file.gcount())));
  }
  if (!file.eof()) throw IoError({.what = "can't read " + path});
  return digest.hex();
}

const char* stem_name(models::Stem stem) {
  return stem == models::Stem::kCifar ? "cifar" : "imagenet";
}

json to_json(const models::ModelSpec& spec) {
  return {{"name", spec.name},
          {"classes", spec.classes},
          {"stem", stem_name(spec.stem)},
          {"in_features", spec.in_features},
          {"width", spec.width},
          {"depth", spec.depth}};
}

models::ModelSpec model_spec(const json& object) {
  models::ModelSpec spec;
  spec.name = object.at("name").get<std::string>();
  spec.classes = object.at("classes").get<int64_t>();
  spec.stem = object.at("stem") == stem_name(models::Stem::kCifar)
                  ? models::Stem::kCifar
                  : models::Stem::kImageNet;
  spec.in_features = object.at("in_features").get<int64_t>();
  spec.width = object.at("width").get<int64_t>();
  spec.depth = object.at("depth").get<int64_t>();
  return spec;
}

void check_file(const std::string& path, const json& entry) {
  const auto bytes = entry.at("bytes").get<uint64_t>();
  const auto sha256 = entry.at("sha256").get<std::string>();
  std::error_code error;
  const uint64_t found = std::filesystem::file_size(path, error);
  if (error) {
    throw CheckpointError(
        {.what = "can't read " + path, .got = error.message()});
  }
  if (found != bytes) {
    throw CheckpointError({.what = path + " is not as it was written",
                           .expected = fmt::format("{} bytes", bytes),
                           .got = fmt::format("{}", found),
                           .fix = "use another checkpoint"});
  }
  if (const std::string digest = file_sha256(path); digest != sha256) {
    throw CheckpointError({.what = path + " is not as it was written",
                           .expected = "SHA-256 " + sha256,
                           .got = digest,
                           .fix = "use another checkpoint"});
  }
}

CheckpointInfo checked_info(const std::string& folder, const json& manifest) {
  const int version = manifest.at("lockstep_checkpoint").get<int>();
  if (version != kFormatVersion) {
    throw CheckpointError(
        {.what = folder + " is of another version of the format",
         .expected = fmt::format("{}", kFormatVersion),
         .got = fmt::format("{}", version)});
  }
  for (const char* name : kCheckpointFiles) {
    check_file(folder + "/" + name, manifest.at("files").at(name));
  }
  CheckpointInfo info;
  info.model = model_spec(manifest.at("model"));
  info.step = manifest.at("step").get<int64_t>();
  info.epoch = manifest.at("epoch").get<int64_t>();
  info.parameter_sha256 = manifest.at("parameter_sha256").get<std::string>();
  return info;
}

}  // namespace

void write_manifest(const std::string& folder, const CheckpointInfo& info) {
  json files = json::object();
  for (const char* name : kCheckpointFiles) {
    const std::string path = folder + "/" + name;
    files[name] = {{"bytes", std::filesystem::file_size(path)},
                   {"sha256", file_sha256(path)}};
  }
  const json manifest{{"lockstep_checkpoint", kFormatVersion},
                      {"model", to_json(info.model)},
                      {"step", info.step},
                      {"epoch", info.epoch},
                      {"parameter_sha256", info.parameter_sha256},
                      {"files", std::move(files)}};
  AtomicFile file(folder + "/" + kManifestFile);
  file.write(manifest.dump(2) + "\n");
  file.commit();
}

CheckpointInfo read_manifest(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  try {
    return checked_info(folder,
                        json::parse(read_file(path, kMaxManifestBytes)));
  } catch (const json::exception& error) {
    throw CheckpointError({.what = path + " is damaged",
                           .got = error.what(),
                           .fix = "use another checkpoint"});
  } catch (const IoError& error) {
    throw CheckpointError(
        {.what = folder + " is no whole checkpoint", .got = error.what()});
  }
}

}  // namespace lockstep::train
