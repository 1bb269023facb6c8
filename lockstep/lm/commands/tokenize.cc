#include <algorithm>
#include <limits>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "lockstep/base/format.h"
#include "lockstep/base/json.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/cli/progress_line.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/lm/commands/commands.h"
#include "lockstep/lm/text/tokenizer.h"

namespace lockstep::cli {
namespace {

struct TokenizeFlags {
  data::TokenizeOptions options;
  std::string tokenizer;
  bool as_json = false;
};

class TokenizeProgress {
 public:
  void show(int64_t done, int64_t total) {
    const double speed =
        static_cast<double>(done) / std::max(since_start_.seconds(), 1e-6);
    line_.show(fmt::format(
        "{} of {} | {}/s", format_bytes(static_cast<double>(done)),
        format_bytes(static_cast<double>(total)), format_bytes(speed)));
  }

 private:
  Stopwatch since_start_;
  ProgressLine line_{"tokenize"};
};

std::shared_ptr<const data::Tokenizer> tokenizer_of(
    const TokenizeFlags& flags) {
  if (flags.tokenizer == "bytes") {
    return data::parse_tokenizer(R"({"type":"bytes"})", "--tokenizer bytes");
  }
  if (flags.tokenizer == "chars") {
    return data::parse_tokenizer(
        data::character_tokenizer_json(flags.options.inputs()),
        "--tokenizer chars");
  }
  return data::open_tokenizer(flags.tokenizer);
}

void print_json(const TokenizeFlags& flags, const data::TokenizeReport& report,
                double seconds) {
  const nlohmann::ordered_json json{{"out_dir", flags.options.out_dir()},
                                    {"bytes", report.bytes},
                                    {"vocabulary", report.vocabulary},
                                    {"bits", report.bits},
                                    {"train_tokens", report.train_tokens},
                                    {"val_tokens", report.val_tokens},
                                    {"train_files", report.train_files},
                                    {"val_files", report.val_files},
                                    {"seconds", seconds}};
  // The name of a folder need not be valid UTF-8.
  fmt::print("{}\n", json.dump(2, ' ', /*ensure_ascii=*/true,
                               nlohmann::json::error_handler_t::replace));
}

void print_text(const TokenizeFlags& flags, const data::TokenizeReport& report,
                double seconds) {
  const auto print_part = [](const char* name, int64_t tokens, size_t files) {
    fmt::print("{}: {} in {}\n", name, counted(tokens, "token"),
               counted(static_cast<int64_t>(files), "file"));
  };
  fmt::print("{} of text in {}: {}, vocabulary of {}, {} bits per token\n",
             format_bytes(static_cast<double>(report.bytes)),
             format_duration(seconds), flags.options.out_dir(),
             counted(report.vocabulary, "token"), report.bits);
  print_part("train", report.train_tokens, report.train_files.size());
  print_part("val", report.val_tokens, report.val_files.size());
}

void run(TokenizeFlags flags) {
  const Stopwatch watch;
  data::TokenizeReport report;
  {
    const auto tokenizer = tokenizer_of(flags);
    TokenizeProgress progress;
    flags.options.progress(
        [&](int64_t done, int64_t total) { progress.show(done, total); });
    report = data::tokenize_files(*tokenizer, flags.options);
  }
  const double seconds = watch.seconds();
  flags.as_json ? print_json(flags, report, seconds)
                : print_text(flags, report, seconds);
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto* command =
      add_command(app, "tokenize", "Turn text files into files of tokens");
  auto flags = std::make_shared<TokenizeFlags>();
  auto& options = flags->options;
  options.threads() =
      static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  add_options(
      *command,
      {{.name = "--input",
        .value = &options.inputs(),
        .help = "UTF-8 texts (for --tokenizer bytes, any files); if the "
                "tokenizer has an end-of-text token, it is put between two "
                "texts",
        .type = "FILE ...",
        .is_required = true},
       {.name = "--out-dir",
        .value = &options.out_dir(),
        .help = "new or empty folder for train_000000.bin, ..., "
                "val_000000.bin, ... and tokenizer.json",
        .type = "DIR",
        .is_required = true},
       {.name = "--tokenizer",
        .value = &flags->tokenizer,
        .help = "chars: a token for each character of the texts; bytes; or a "
                "tokenizer.json of byte level BPE, or a folder with it or with "
                "GPT-2's vocab.json and merges.txt",
        .type = "NAME|PATH",
        .is_required = true},
       {.name = "--shard-tokens",
        .value = &options.shard_tokens(),
        .help = "tokens per file; the last one may have fewer",
        .range = between(1, std::numeric_limits<int32_t>::max())},
       {.name = "--val-fraction",
        .value = &options.val_fraction(),
        .help = "fraction of the tokens, at the end, that is for validation",
        .range = Range{.least = 0, .most = 1, .excludes_most = true}},
       {.name = "--threads",
        .value = &options.threads(),
        .help = "files to encode at the same time; each file and its tokens "
                "are in memory",
        .default_text = "cores",
        .range = between(1, 1024)},
       {.name = "--json",
        .value = &flags->as_json,
        .help = "print the result as JSON"}});
  command->footer(
      "The tokens do not depend on the number of threads.\n\n"
      "Example:\n"
      "  lockstep tokenize --input book.txt --out-dir data/book \\\n"
      "      --tokenizer chars --val-fraction 0.1");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
