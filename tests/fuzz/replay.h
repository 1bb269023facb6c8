#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/base/temporary_folder.h"

namespace lockstep::fuzz {

/// LLVMFuzzerTestOneInput of a fuzz target, renamed by CMake.
using Target = int (*)(const uint8_t* data, size_t size);

inline std::string corpus(const std::string& name) {
  return LOCKSTEP_SOURCE_DIR "/tests/fuzz/corpus/" + name;
}

inline std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// Feeds the corpus `name` to its target.
inline void replay(const std::string& name, Target target) {
  const auto files = files_below(corpus(name));
  EXPECT_FALSE(files.empty());
  for (const std::string& file : files) {
    const std::string content = content_of(file);
    EXPECT_NO_THROW(target(reinterpret_cast<const uint8_t*>(content.data()),
                           content.size()))
        << file;
  }
}

}  // namespace lockstep::fuzz
