#include "lockstep/checkpoint/manifest.h"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/strict_json.h"

namespace lockstep {
namespace {

using nlohmann::json;

// Version 1 had neither a run record nor its own checksum. Version 2 had only
// the sizes of Lockstep's models, and only loss and accuracy as metrics.
constexpr int kFormatVersion = 3;
constexpr size_t kMaxManifestBytes = 1 << 20;
constexpr size_t kMaxFiles = 4096;
constexpr size_t kMaxSettings = 1024;

// Returns JSON text. Settings may contain file names, which may have any bytes.
std::string as_text(const json& object, int indent) {
  return object.dump(indent, ' ', /*ensure_ascii=*/false,
                     json::error_handler_t::replace);
}

std::string file_checksum(const std::string& path) {
  Checksum checksum;
  read_in_parts(path, [&](auto bytes) { checksum.add(bytes); });
  return checksum.hex();
}

json to_json(const RunRecord& run) {
  const RunPosition& at = run.position;
  json position{{"step", at.step},
                {"epoch", at.epoch},
                {"batch", at.batch},
                {"samples", at.samples}};
  if (at.is_ended) position["is_ended"] = true;
  return {{"position", std::move(position)},
          {"sums", at.sums},
          {"settings", run.settings},
          {"versions", run.versions}};
}

// Reads values from a manifest that may be hostile.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  [[noreturn]] void refuse(const std::string& what, const std::string& got) {
    refuse_damaged(path_ + " is damaged", what, got);
  }

  const json& member(const json& object, const char* key) {
    if (!object.is_object() || !object.contains(key)) {
      refuse(fmt::format("a key '{}'", key), "none");
    }
    return object.at(key);
  }

  int64_t whole(const json& object, const char* key,
                int64_t most = int64_t{1} << 53) {
    const json& value = member(object, key);
    const bool is_whole = value.is_number_unsigned() &&
                          value.get<uint64_t>() <= static_cast<uint64_t>(most);
    if (!is_whole) {
      refuse(fmt::format("'{}' of 0 to {}", key, most), brief(value));
    }
    return value.get<int64_t>();
  }

  std::string text(const json& object, const char* key) {
    const json& value = member(object, key);
    if (!value.is_string()) refuse(fmt::format("text in '{}'", key), "other");
    return value.get<std::string>();
  }

  std::string checksum(const json& object, const char* key) {
    std::string digest = text(object, key);
    const bool is_hex =
        digest.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (digest.size() != 32 || !is_hex) {
      refuse(fmt::format("32 digits in '{}'", key), quote(digest));
    }
    return digest;
  }

  std::map<std::string, double> sums(const json& object) {
    std::map<std::string, double> sums;
    const json& values = member(object, "sums");
    if (!values.is_object() || values.size() > kMaxSettings) {
      refuse("an object of numbers in 'sums'", brief(values));
    }
    for (const auto& [name, value] : values.items()) {
      if (!value.is_number()) refuse("numbers in 'sums'", brief(value));
      sums[name] = value.get<double>();
    }
    return sums;
  }

  Settings settings(const json& object, const char* key,
                    size_t most = kMaxSettings) {
    Settings settings;
    const json& values = member(object, key);
    if (!values.is_object() || values.size() > most) {
      refuse(fmt::format("an object of settings in '{}'", key), brief(values));
    }
    for (const auto& [name, value] : values.items()) {
      if (!value.is_string()) refuse("settings as text", brief(value));
      settings[name] = value.get<std::string>();
    }
    return settings;
  }

  RunRecord run(const json& object) {
    const json& at = member(object, "position");
    RunRecord record;
    record.position = {.step = whole(at, "step"),
                       .epoch = whole(at, "epoch"),
                       .batch = whole(at, "batch"),
                       .samples = whole(at, "samples"),
                       .sums = sums(object),
                       .is_ended = at.value("is_ended", json()) == true};
    record.settings = settings(object, "settings");
    record.versions = settings(object, "versions");
    return record;
  }

  std::vector<CheckpointFile> files(const json& object) {
    if (!object.is_object() || object.size() > kMaxFiles) {
      refuse(fmt::format("up to {} files", kMaxFiles), brief(object));
    }
    std::vector<CheckpointFile> files;
    for (const auto& [name, entry] : object.items()) {
      check_name(name);
      files.push_back({.name = name,
                       .bytes = static_cast<uint64_t>(whole(entry, "bytes")),
                       .xxh128 = checksum(entry, "xxh128")});
    }
    return files;
  }

 private:
  // Refuses names that lead outside the folder, or to files that are not ours.
  void check_name(const std::string& name) {
    const bool is_plain =
        name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") ==
        std::string::npos;
    if (!is_plain || name.starts_with('.') || !name.ends_with(".safetensors")) {
      refuse("names of files in the folder", quote(name));
    }
  }

  const std::string& path_;
};

void check_file(const std::string& path, const CheckpointFile& file) {
  std::error_code error;
  if (std::filesystem::is_symlink(path, error)) {
    throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                           .what = path + " is a link",
                           .expected = "the file itself",
                           .fix = "copy what it leads to, if you trust it"});
  }
  const uint64_t found = std::filesystem::file_size(path, error);
  if (error) {
    throw CheckpointError({.code = ErrorCode::kFileAccess,
                           .what = "can't read " + path,
                           .got = error.message()});
  }
  if (found != file.bytes) {
    refuse_damaged(path + " is not as it was written",
                   fmt::format("{} bytes", file.bytes),
                   fmt::format("{}", found));
  }
  if (const std::string digest = file_checksum(path); digest != file.xxh128) {
    refuse_damaged(path + " is not as it was written", "XXH128 " + file.xxh128,
                   digest);
  }
}

}  // namespace

bool Manifest::has(std::string_view file) const {
  return std::any_of(files.begin(), files.end(),
                     [&](const auto& one) { return one.name == file; });
}

void refuse_damaged(const std::string& what, const std::string& expected,
                    const std::string& got) {
  throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                         .what = what,
                         .expected = expected,
                         .got = got,
                         .fix = "use another checkpoint"});
}

std::string optimizer_file(int part, int parts) {
  if (parts == 1) return fmt::format("{}.safetensors", kOptimizerFiles);
  return fmt::format("{}-{:05}-of-{:05}.safetensors", kOptimizerFiles, part + 1,
                     parts);
}

std::string format_manifest(const Manifest& manifest) {
  json files = json::object();
  for (const CheckpointFile& file : manifest.files) {
    files[file.name] = {{"bytes", file.bytes}, {"xxh128", file.xxh128}};
  }
  json not_finite = json::object();
  for (const auto& name : manifest.not_finite) not_finite[name] = "saved so";
  const CheckpointInfo& info = manifest.info;
  json object{{"lockstep_checkpoint", kFormatVersion},
              {"model", info.model},
              {"step", info.step},
              {"epoch", info.epoch},
              {"parameter_sha256", info.parameter_sha256},
              {"not_finite", std::move(not_finite)},
              {"files", std::move(files)}};
  if (info.run) object["run"] = to_json(*info.run);
  object["manifest_xxh128"] = checksum_of(as_text(object, -1));
  return as_text(object, 2) + "\n";
}

Manifest parse_manifest(const std::string& path, std::string_view text) {
  Reader reader(path);
  json object = parse_strict_json(path, text, {.fail = fail_checkpoint}).root;
  const int64_t version = reader.whole(object, "lockstep_checkpoint");
  if (version != kFormatVersion) {
    const bool is_newer = version > kFormatVersion;
    throw CheckpointError(
        {.code = ErrorCode::kCheckpointVersion,
         .what = fmt::format("{} was written by {} version of Lockstep", path,
                             is_newer ? "a newer" : "an older"),
         .expected = fmt::format("checkpoint format {}", kFormatVersion),
         .got = fmt::format("format {}", version),
         .fix = is_newer ? "update Lockstep"
                         : "use the version of Lockstep that wrote it"});
  }
  const std::string saved = reader.checksum(object, "manifest_xxh128");
  object.erase("manifest_xxh128");
  if (saved != checksum_of(as_text(object, -1))) {
    reader.refuse("what was written", "something else (XXH128)");
  }
  Manifest manifest;
  manifest.info.model = reader.settings(object, "model");
  manifest.info.step = reader.whole(object, "step");
  manifest.info.epoch = reader.whole(object, "epoch");
  manifest.info.parameter_sha256 = reader.text(object, "parameter_sha256");
  if (object.contains("run")) manifest.info.run = reader.run(object["run"]);
  manifest.files = reader.files(reader.member(object, "files"));
  for (const auto& [name, what] :
       reader.settings(object, "not_finite", kMaxManifestBytes)) {
    manifest.not_finite.push_back(name);
  }
  return manifest;
}

std::string read_manifest_text(const std::string& folder) {
  const std::string path = folder + "/" + kManifestFile;
  std::error_code error;
  const auto status = std::filesystem::symlink_status(path, error);
  // Opening a pipe would block.
  if (std::filesystem::exists(status) &&
      !std::filesystem::is_regular_file(status)) {
    throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                           .what = path + " can't be used",
                           .expected = "a file",
                           .got = "a link or something else"});
  }
  try {
    return read_file(path, kMaxManifestBytes);
  } catch (const IoError& error) {
    throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                           .what = folder + " is not a complete checkpoint",
                           .got = text_of(error)});
  }
}

Manifest read_manifest(const std::string& folder) {
  Manifest manifest =
      parse_manifest(folder + "/" + kManifestFile, read_manifest_text(folder));
  if (manifest.info.run && !manifest.has(kRandomFile)) {
    refuse_damaged(folder + "/" + kManifestFile + " is damaged",
                   fmt::format("a file '{}', without which a run can't go on "
                               "to the same bits",
                               kRandomFile),
                   "none");
  }
  try {
    for (const CheckpointFile& file : manifest.files) {
      check_file(folder + "/" + file.name, file);
    }
  } catch (const IoError& error) {
    throw CheckpointError({.code = ErrorCode::kCheckpointDamaged,
                           .what = folder + " is not a complete checkpoint",
                           .got = text_of(error)});
  }
  return manifest;
}

}  // namespace lockstep
