#include "lockstep/data/data_folder.h"

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
  entries_of(dir);
}

std::vector<fs::directory_entry> entries_of(const fs::path& dir) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(dir, error), end; !error && at != end;
       at.increment(error)) {
    entries.push_back(*at);
  }
  if (!error) return entries;
  throw DataError({.code = ErrorCode::kFileAccess,
                   .what = "can't read folder " + dir.string(),
                   .got = error.message(),
                   .fix = "check its permissions"});
}

}  // namespace lockstep::data
