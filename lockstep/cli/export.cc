#include <memory>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/parse_json.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/hugging_face.h"
#include "lockstep/cli/commands.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/tasks/text/text_checkpoint.h"

namespace lockstep::cli {
namespace {

struct ExportFlags {
  std::string checkpoint;
  std::string out_dir;
};

/// Writes the tokenizer. Returns the name of its file.
std::string save_tokenizer(const std::string& folder,
                           const data::Tokenizer& tokenizer) {
  const std::string text = tokenizer.to_json();
  // Those of characters and of bytes are Lockstep's own: under the name that
  // Hugging Face's library looks for, they would be an error there.
  const bool is_theirs = parse_json(text).contains("model");
  const std::string name =
      is_theirs ? "tokenizer.json" : "lockstep_tokenizer.json";
  AtomicFile file(folder + "/" + name);
  file.write(text);
  file.commit();
  return name;
}

void run(const ExportFlags& flags) {
  if (flags.checkpoint.empty() || flags.out_dir.empty()) {
    throw BadUsage(
        "[usage] export needs --checkpoint DIR, a checkpoint or the --out-dir "
        "of a run, and --out-dir DIR, a new folder");
  }
  const tasks::TextModel loaded =
      tasks::load_text_model(find_checkpoint(flags.checkpoint));
  save_hugging_face(flags.out_dir, *loaded.model);
  fmt::print("{} -> {}: config.json, model.safetensors, {}\n",
             loaded.checkpoint, flags.out_dir,
             save_tokenizer(flags.out_dir, *loaded.tokenizer));
}

}  // namespace

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand(
      "export", "Write a language model's checkpoint as Hugging Face's folder");
  auto flags = std::make_shared<ExportFlags>();
  command
      ->add_option("--checkpoint", flags->checkpoint,
                   "a checkpoint, or the --out-dir of a run: its newest")
      ->type_name("DIR")
      ->default_str("none: must be given");
  command
      ->add_option("--out-dir", flags->out_dir,
                   "a new folder: for from_pretrained() of transformers, or "
                   "for --init-from")
      ->type_name("DIR")
      ->default_str("none: must be given");
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
