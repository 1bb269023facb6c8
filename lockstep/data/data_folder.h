#pragma once

#include <string>

namespace lockstep::data {

/// Throws DataError unless `dir` is a folder that can be read. `option_name`:
/// the dataset's name in --data. `expected`: what the folder should contain.
void check_data_folder(const std::string& dir, const std::string& option_name,
                       const std::string& expected);

}  // namespace lockstep::data
