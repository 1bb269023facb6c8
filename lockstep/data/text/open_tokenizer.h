#pragma once

#include <memory>
#include <string>

#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

/// The tokenizer in a file, a tokenizer.json, or in a folder, with such a file
/// or else GPT-2's vocab.json and merges.txt. Throws IoError for what can't be
/// read or has more than 64 MiB, DataError as parse_tokenizer().
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path);

}  // namespace lockstep::data
