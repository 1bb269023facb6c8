#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/info.h"

namespace lockstep {

inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kModelFile = "model.safetensors";
inline constexpr const char* kRandomFile = "random.safetensors";
/// Beginning of the names of the optimizer's files.
inline constexpr const char* kOptimizerFiles = "optimizer";

/// Returns "optimizer.safetensors", or the name of part `part` of several.
std::string optimizer_file(int part, int parts);

/// Name, size and checksum of a file as it was written.
struct CheckpointFile {
  std::string name;
  uint64_t bytes = 0;
  std::string xxh128;
};

struct Manifest {
  CheckpointInfo info;
  std::vector<CheckpointFile> files;
  std::vector<std::string> not_finite;  ///< buffers with a NaN or infinity

  bool has(std::string_view file) const;
};

/// Throws CheckpointError (kCheckpointDamaged), which says to use another
/// checkpoint.
[[noreturn]] void refuse_damaged(const std::string& what,
                                 const std::string& expected = "",
                                 const std::string& got = "");

/// Returns JSON that includes its own checksum.
std::string format_manifest(const Manifest& manifest);
/// Parses the text of the file at `path`, which may be hostile. Throws
/// CheckpointError.
Manifest parse_manifest(const std::string& path, std::string_view text);

/// Returns the text of the manifest in `folder`. Throws CheckpointError.
std::string read_manifest_text(const std::string& folder);
/// Parses the manifest and checks the files of `folder` against it. Throws
/// CheckpointError naming the file that is missing, truncated or changed.
Manifest read_manifest(const std::string& folder);

}  // namespace lockstep
