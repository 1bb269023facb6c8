#pragma once

#include <memory>
#include <string>

#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

/// Opens a tokenizer.json, or a folder with such a file or else with GPT-2's
/// vocab.json and merges.txt. Throws IoError for a file that can't be read or
/// has more than 64 MiB, and DataError as parse_tokenizer() does.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path);

}  // namespace lockstep::data
