#include "lockstep/lm/task/generate.h"

#include <cstdio>
#include <memory>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/exit_code.h"
#include "lockstep/base/interrupt.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/embed/device_options.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/device/memory.h"
#include "lockstep/lm/commands/commands.h"
#include "lockstep/lm/task/text_checkpoint.h"
#include "lockstep/parallel/module/scatter_gather.h"

namespace lockstep::cli {
namespace {

struct GenerateFlags {
  std::string checkpoint;
  std::string prompt = "\n";
  tasks::GenerateOptions options;
  DeviceFlags devices;
};

/// Prints tokens as they are generated, but never part of a UTF-8 character,
/// and no control characters on a terminal, because a model may have learned
/// any bytes.
class TokenPrinter {
 public:
  void print(const std::string& bytes) {
    waiting_ += bytes;
    const size_t whole = waiting_.size() - unfinished();
    write(waiting_.substr(0, whole));
    waiting_.erase(0, whole);
  }
  void finish() { write(waiting_ + "\n"); }

 private:
  /// Returns the number of bytes at the end that are an incomplete character.
  size_t unfinished() const {
    const auto byte = [&](size_t from_end) {
      return static_cast<unsigned char>(waiting_[waiting_.size() - from_end]);
    };
    for (size_t n = 1; n <= 3 && n <= waiting_.size(); ++n) {
      if ((byte(n) & 0xc0) == 0x80) continue;
      const size_t length = byte(n) >= 0xf0   ? 4
                            : byte(n) >= 0xe0 ? 3
                            : byte(n) >= 0xc0 ? 2
                                              : 1;
      return length > n ? n : 0;
    }
    return 0;
  }

  void write(std::string text) const {
    if (is_terminal_) {
      for (char& letter : text) {
        const auto code = static_cast<unsigned char>(letter);
        const bool is_control = code < 0x20 || code == 0x7f;
        if (is_control && letter != '\n' && letter != '\t') letter = '?';
      }
    }
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  const bool is_terminal_ = isatty(STDOUT_FILENO) == 1;
  std::string waiting_;
};

void run(const GenerateFlags& flags) {
  if (flags.checkpoint.empty()) {
    throw BadUsage(
        "[usage] generate needs --checkpoint DIR: a checkpoint, or the "
        "--out-dir of a run");
  }
  tasks::check(flags.options.sampling);
  install_accounting_allocator();
  const auto device = to_devices(flags.devices, one_device()).front();
  const tasks::TextModel loaded = tasks::load_text_model(flags.checkpoint);
  loaded.model->to(torch_device(device));
  const auto ids = loaded.tokenizer->encode(flags.prompt);
  tasks::GenerateOptions options = flags.options;
  options.vocabulary = loaded.tokenizer->vocabulary();
  if (const auto end = loaded.tokenizer->end_of_text()) options.end = *end;
  const InterruptScope interrupts;
  TokenPrinter printer;
  printer.print(flags.prompt);
  tasks::generate(*loaded.model, {ids.begin(), ids.end()}, options,
                  [&](int64_t token) {
                    if (options.end != token) {
                      const auto id = static_cast<uint32_t>(token);
                      printer.print(loaded.tokenizer->decode({&id, 1}));
                    }
                    return InterruptScope::signal() == 0;
                  });
  printer.finish();
  if (const int signal = InterruptScope::signal(); signal != 0) {
    throw CLI::RuntimeError(kExitSignal + signal);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto* command =
      add_command(app, "generate", "Continue a text with a language model");
  auto flags = std::make_shared<GenerateFlags>();
  tasks::SamplingOptions& sampling = flags->options.sampling;
  add_options(
      *command,
      {checkpoint_option(flags->checkpoint),
       {.name = "--prompt",
        .value = &flags->prompt,
        .help = "the text to continue",
        .type = "TEXT",
        .default_text = "a new line"},
       {.name = "--max-tokens",
        .value = &flags->options.max_tokens,
        .help = "tokens to generate",
        .range = at_least(1)},
       {.name = "--temperature",
        .value = &sampling.temperature,
        .help = "below 1, likely tokens are preferred; 0: always the most "
                "likely one",
        .range = at_least(0)},
       {.name = "--top-k",
        .value = &sampling.top_k,
        .help = "choose from this many of the most likely tokens; 0: from all",
        .range = at_least(0)},
       {.name = "--top-p",
        .value = &sampling.top_p,
        .help = "choose from the most likely tokens that together have this "
                "probability",
        .range = at_least(0)},
       train_option("--seed", &flags->options.seed,
                    "seed of the choices: another seed gives another text")});
  add_options(*command,
              device_options(flags->devices, "the first GPU, or all cores"));
  command->footer(
      "The text is printed as it is generated; Ctrl-C ends it.\n\n"
      "Example:\n"
      "  lockstep train --model gpt-char --data text --data-file book.txt \\\n"
      "      --max-steps 2000 --out-dir runs/book\n"
      "  lockstep generate --checkpoint runs/book --prompt \"ROMEO:\"");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
