#include "lockstep/data/data_folder.h"

#include <filesystem>

#include "lockstep/base/error.h"

namespace lockstep::data {

namespace fs = std::filesystem;

void check_data_folder(const std::string& dir, const std::string& option_name,
                       const std::string& expected) {
  std::error_code error;
  if (dir.empty() || !fs::is_directory(dir, error)) {
    throw DataError({.code = ErrorCode::kFileAccess,
                     .what = dir.empty() ? option_name + " needs a folder"
                                         : "can't open folder " + dir,
                     .expected = expected,
                     .got = dir.empty()              ? "none"
                            : fs::exists(dir, error) ? "something not a folder"
                            : error                  ? error.message()
                                                     : "no such folder",
                     .fix = "name one with --data-dir"});
  }
  const fs::directory_iterator entries(dir, error);
  if (!error) return;
  throw DataError({.code = ErrorCode::kFileAccess,
                   .what = "can't read folder " + dir,
                   .got = error.message(),
                   .fix = "check its permissions"});
}

}  // namespace lockstep::data
