#include "lockstep/checkpoint/folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "lockstep/base/atomic_folder.h"
#include "lockstep/base/numbers.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step =
      parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return step && *step >= 0 ? step : std::nullopt;
}

}  // namespace

std::string checkpoint_path(const std::string& dir, int64_t step) {
  return (fs::path(dir) / fmt::format("{}{:08}", kPrefix, step)).string();
}

std::vector<SavedCheckpoint> list_checkpoints(const std::string& dir) {
  std::vector<SavedCheckpoint> saved;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.is_directory(ignored)) {
      saved.push_back({.step = *step, .path = entry.path().string()});
    }
  }
  std::sort(saved.begin(), saved.end(),
            [](const auto& a, const auto& b) { return a.step > b.step; });
  return saved;
}

void prune_checkpoints(const std::string& dir, int64_t last, int keep) {
  int kept = 0;
  for (const SavedCheckpoint& saved : list_checkpoints(dir)) {
    if (saved.step > last) continue;
    if (++kept > keep) remove_folder(saved.path);
  }
}

}  // namespace lockstep
