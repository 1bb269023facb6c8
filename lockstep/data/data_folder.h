#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::data {

/// Throws DataError unless `dir` is a folder that can be read. `option_name`:
/// the dataset's name in --data. `expected`: what the folder should contain.
void check_data_folder(const std::string& dir, const std::string& option_name,
                       const std::string& expected);

/// Returns the content of a folder, in any order. Throws DataError if it can't
/// be read.
std::vector<std::filesystem::directory_entry> entries_of(
    const std::filesystem::path& dir);

}  // namespace lockstep::data
