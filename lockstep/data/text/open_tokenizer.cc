#include <filesystem>
#include <system_error>

#include "lockstep/base/atomic_file.h"
#include "lockstep/data/text/bpe_tokenizer.h"
#include "lockstep/data/text/tokenizer.h"

namespace lockstep::data {

std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& path) {
  std::error_code ignored;
  const auto read = [](const std::string& file) {
    return read_file(file, kMostTokenizerBytes);
  };
  if (!std::filesystem::is_directory(path, ignored)) {
    return parse_tokenizer(read(path), path);
  }
  const std::string json = path + "/tokenizer.json";
  if (std::filesystem::exists(json, ignored)) {
    return parse_tokenizer(read(json), json);
  }
  return std::make_shared<const BpeTokenizer>(
      read_gpt2_files(read(path + "/vocab.json"), read(path + "/merges.txt"),
                      path),
      path);
}

}  // namespace lockstep::data
