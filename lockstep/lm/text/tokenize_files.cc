#include <algorithm>
#include <deque>
#include <exception>
#include <filesystem>
#include <set>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/atomic_folder.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/lm/text/token_shards.h"
#include "lockstep/lm/text/tokenizer.h"
#include "lockstep/lm/text/utf8.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxTextBytes = size_t{16} << 30;
constexpr int64_t kMax16BitTokens = 65'536;

int64_t bytes_of_file(const std::string& path) {
  std::error_code code;
  if (!fs::is_regular_file(path, code)) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = "can't read the text " + path,
                   .expected = "a file",
                   .got = code ? code.message() : "something else"});
  }
  const auto bytes = fs::file_size(path, code);
  return code ? 0 : static_cast<int64_t>(bytes);
}

// Encodes a file in a separate thread.
class EncodedFile {
 public:
  EncodedFile(const Tokenizer& tokenizer, const std::string& path)
      : path_(path),
        thread_(start_thread("data", "encoding a file", [this, &tokenizer] {
          try {
            const std::string text = read_file(path_, kMaxTextBytes);
            bytes_ = static_cast<int64_t>(text.size());
            ids_ = tokenizer.encode(text);
          } catch (...) {
            error_ = std::current_exception();
          }
        })) {}
  ~EncodedFile() {
    if (thread_.joinable()) thread_.join();
  }
  EncodedFile(const EncodedFile&) = delete;
  EncodedFile& operator=(const EncodedFile&) = delete;

  /// Waits for the thread. Throws what encoding threw.
  const std::vector<uint32_t>& ids() {
    if (thread_.joinable()) thread_.join();
    if (!error_) return ids_;
    try {
      std::rethrow_exception(error_);
    } catch (const DataError& error) {
      throw DataError({.code = error.code(),
                       .what = path_ + " can't be encoded",
                       .got = text_of(error)});
    }
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::string path_;
  int64_t bytes_ = 0;
  std::vector<uint32_t> ids_;
  std::exception_ptr error_;
  std::thread thread_;  // the last member: it uses the others
};

void check(const TokenizeOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& expected,
                         const std::string& got) {
    throw InvalidArgument("data", {.code = ErrorCode::kBadOption,
                                   .what = what,
                                   .expected = expected,
                                   .got = got});
  };
  if (options.inputs().empty())
    refuse("there is no text", "one or more", "none");
  if (!(options.val_fraction() >= 0 && options.val_fraction() < 1)) {
    refuse("that part can't be for validation", "0 or more, below 1",
           fmt::format("{}", options.val_fraction()));
  }
  if (options.threads() < 1) {
    refuse("that many threads can't encode", "1 or more",
           fmt::format("{}", options.threads()));
  }
  std::error_code ignored;
  if (fs::exists(options.out_dir(), ignored) &&
      !fs::is_empty(options.out_dir(), ignored)) {
    throw IoError({.code = ErrorCode::kFileAccess,
                   .what = options.out_dir() + " is not empty",
                   .expected = "a new folder or an empty one",
                   .got = "files that would be lost",
                   .fix = "name another folder, or remove this one"});
  }
}

std::vector<std::string> names_of(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const auto& path : paths) {
    names.push_back(fs::path(path).filename().string());
  }
  return names;
}

// Writes the tokens of all files in order. While one file is written, as many
// as there are threads are already being encoded.
void write_tokens(const Tokenizer& tokenizer, const TokenizeOptions& options,
                  int64_t total, TokenShardWriter& writer) {
  std::deque<EncodedFile> ahead;
  size_t started = 0;
  int64_t done = 0;
  for (size_t i = 0; i < options.inputs().size(); ++i) {
    while (started < options.inputs().size() &&
           ahead.size() < static_cast<size_t>(options.threads())) {
      ahead.emplace_back(tokenizer, options.inputs()[started++]);
    }
    const auto end_of_text = tokenizer.end_of_text();
    if (i > 0 && end_of_text) writer.add(std::span(&*end_of_text, 1));
    writer.add(ahead.front().ids());
    done += ahead.front().bytes();
    ahead.pop_front();
    if (options.progress()) options.progress()(done, std::max(done, total));
  }
  writer.commit();
  if (writer.size() > 0) return;
  throw DataError({.code = ErrorCode::kMalformedData,
                   .what = "there is nothing to write to " + options.out_dir(),
                   .expected = "texts with at least one token",
                   .got = fmt::format("{} bytes of text", total)});
}

}  // namespace

TokenizeReport tokenize_files(const Tokenizer& tokenizer,
                              const TokenizeOptions& options) {
  check(options);
  TokenizeReport report{.vocabulary = tokenizer.vocabulary()};
  for (const auto& input : options.inputs())
    report.bytes += bytes_of_file(input);
  const auto format = report.vocabulary <= kMax16BitTokens
                          ? TokenFormat::kUint16
                          : TokenFormat::kUint32;
  report.bits = static_cast<int>(8 * token_bytes(format));

  const auto parent = fs::absolute(options.out_dir()).lexically_normal();
  const std::string path =
      (parent.has_filename() ? parent : parent.parent_path()).string();
  make_directories(fs::path(path).parent_path().string());
  sweep_unfinished_folders(fs::path(path).parent_path().string());
  AtomicFolder folder(path);
  TokenShardWriter writer(folder.temporary(), "train_", format,
                          options.shard_tokens());
  write_tokens(tokenizer, options, report.bytes, writer);
  report.val_tokens = static_cast<int64_t>(static_cast<double>(writer.size()) *
                                           options.val_fraction());
  report.train_tokens = writer.size() - report.val_tokens;
  report.train_files = names_of(writer.paths());
  if (report.val_tokens > 0) {
    const auto parts =
        move_last_tokens(folder.temporary(), "train_", "val_",
                         report.val_tokens, options.shard_tokens());
    report.train_files = names_of(parts.from);
    report.val_files = names_of(parts.to);
  }
  AtomicFile json(folder.temporary() + "/tokenizer.json");
  json.write(tokenizer.to_json());
  json.commit();
  folder.commit();
  return report;
}

std::string character_tokenizer_json(const std::vector<std::string>& inputs) {
  // UTF-8 sorts in the order of the code points.
  std::set<std::string, std::less<>> characters;
  for (const auto& input : inputs) {
    bytes_of_file(input);
    const std::string text = read_file(input, kMaxTextBytes);
    if (const auto at = first_invalid_utf8(text)) {
      throw DataError({.code = ErrorCode::kMalformedData,
                       .what = input + " is not UTF-8",
                       .expected = "characters of UTF-8",
                       .got = fmt::format("others at byte {}", *at),
                       .fix = fix_for_text(text)});
    }
    for (size_t at = 0; at < text.size();) {
      const size_t end = next_utf8(text, at);
      const auto character = std::string_view(text).substr(at, end - at);
      if (!characters.contains(character)) characters.emplace(character);
      at = end;
    }
  }
  std::string all;
  for (const auto& character : characters) all += character;
  return nlohmann::json{{"type", "characters"}, {"characters", all}}.dump();
}

}  // namespace lockstep::data
