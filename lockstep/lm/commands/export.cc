#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/numbers.h"
#include "lockstep/base/output.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/cli/command_options.h"
#include "lockstep/cli/start/add_option.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/program.h"
#include "lockstep/lm/commands/commands.h"
#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/task/text_checkpoint.h"
#include "lockstep/lm/text/bpe_model.h"
#include "lockstep/models/model_settings.h"

namespace lockstep::cli {
namespace {

struct ExportFlags {
  std::string checkpoint;
  std::string out_dir;
  std::string max_shard_size = "50GB";
};

using Json = nlohmann::ordered_json;

/// Converts one of Lockstep's own tokenizers to Hugging Face's format: byte
/// pair encoding without merges, so that each letter is a token.
Json without_merges(std::span<const std::string> letters, Json pre_tokenizer,
                    Json decoder) {
  Json vocabulary = Json::object();
  for (size_t id = 0; id < letters.size(); ++id) vocabulary[letters[id]] = id;
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor", nullptr},
          {"decoder", std::move(decoder)},
          {"model",
           {{"type", "BPE"},
            {"vocab", std::move(vocabulary)},
            {"merges", Json::array()}}}};
}

Json in_their_words(const data::Tokenizer& tokenizer) {
  const Json own = parse_json<Json>(tokenizer.to_json());
  if (own.contains("model")) return own;
  if (own.at("type") == "bytes") {
    const Json byte_level{{"type", "ByteLevel"},
                          {"add_prefix_space", false},
                          {"trim_offsets", true},
                          {"use_regex", false}};
    return without_merges(data::letters_of_bytes(), byte_level, byte_level);
  }
  std::vector<std::string> characters;
  for (int64_t id = 0; id < tokenizer.vocabulary(); ++id) {
    const auto token = static_cast<uint32_t>(id);
    characters.push_back(tokenizer.decode({&token, 1}));
  }
  return without_merges(characters, nullptr, {{"type", "Fuse"}});
}

/// Returns the special token for which `is_it` returns true, or null.
Json find_special(const Json& tokenizer,
                  const std::function<bool(const Json&)>& is_it) {
  for (const Json& token : tokenizer.at("added_tokens")) {
    if (token.at("special") == true && is_it(token)) return token;
  }
  return nullptr;
}

bool is_for_beginning(const Json& token) {
  const auto& text = token.at("content");
  return text == "<|begin_of_text|>" || text == "<s>" || text == "<bos>";
}

/// Writes the tokenizer in the format that AutoTokenizer reads, and writes to
/// config.json which tokens begin and end a text. Returns the names of the
/// files.
std::string save_tokenizer(const std::string& folder,
                           const tasks::TextModel& saved) {
  const data::Tokenizer& tokenizer = *saved.tokenizer;
  const Json theirs = in_their_words(tokenizer);
  // GPT-2 begins and ends a text with the same token.
  const auto end_id = tokenizer.end_of_text();
  const Json end = find_special(theirs, [&](const Json& token) {
    return end_id && token.at("id") == *end_id;
  });
  Json begin = find_special(theirs, is_for_beginning);
  if (begin.is_null()) begin = end;
  const auto part = [](const Json& token, const char* key) {
    return token.is_null() ? Json() : token.at(key);
  };
  write_atomically(folder + "/tokenizer.json", theirs.dump());
  write_atomically(folder + "/tokenizer_config.json",
                   Json{{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"bos_token", part(begin, "content")},
                        {"eos_token", part(end, "content")},
                        {"model_max_length", saved.model->spec().context},
                        {"clean_up_tokenization_spaces", false}}
                           .dump(2) +
                       "\n");
  Json config = parse_json<Json>(read_file(folder + "/config.json", 1 << 20));
  config["bos_token_id"] = part(begin, "id");
  config["eos_token_id"] = part(end, "id");
  write_atomically(folder + "/config.json", config.dump(2) + "\n");
  const std::string names = "tokenizer.json, tokenizer_config.json";
  const std::string own = tokenizer.to_json();
  if (parse_json(own).contains("model")) return names;
  // Lockstep's own tokenizers refuse text that has no token. `lockstep` reads
  // them from this file.
  write_atomically(folder + "/lockstep_tokenizer.json", own);
  return names + ", lockstep_tokenizer.json";
}

/// Returns the bytes that "5GB", "200MB" or "1000" stands for. The units are
/// powers of 1000, as in transformers.
uint64_t to_shard_bytes(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 4> kUnits{
      {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}};
  constexpr double kMax = 1e15;
  std::string_view digits = text;
  double factor = 1;
  for (const auto& [unit, bytes] : kUnits) {
    if (!digits.ends_with(unit)) continue;
    digits.remove_suffix(unit.size());
    factor = bytes;
    break;
  }
  const double size = parse_number<double>(digits).value_or(0) * factor;
  if (size >= 1 && size <= kMax) return static_cast<uint64_t>(size);
  throw BadUsage(
      fmt::format("[usage] --max-shard-size: expected bytes, or a number with "
                  "KB, MB, GB or TB, got '{}'; try --max-shard-size 5GB",
                  text));
}

/// Returns the names of the files that write_weights() wrote.
std::string names_of_weights(size_t files) {
  if (files == 1) return "model.safetensors";
  return fmt::format(
      "model-*-of-{:05}.safetensors, model.safetensors.index.json", files);
}

/// Writes the state dict of an image model. A ResNet's is the same as
/// torchvision's.
void export_images(const CheckpointReader& reader, const std::string& folder,
                   uint64_t max_shard_bytes) {
  const auto model = models::make(
      models::spec_from_settings(reader.info().model), models::Init::kNone);
  reader.load(*model);
  const size_t files =
      write_weights(folder, state_dict(*model), max_shard_bytes);
  fmt::print("{} -> {}: {}\n", reader.path(), folder, names_of_weights(files));
}

void run(const ExportFlags& flags) {
  if (flags.checkpoint.empty() || flags.out_dir.empty()) {
    throw BadUsage(
        "[usage] export needs --checkpoint DIR, a checkpoint or the --out-dir "
        "of a run, and --out-dir DIR, a new folder");
  }
  const uint64_t max_shard_bytes = to_shard_bytes(flags.max_shard_size);
  if (!is_hugging_face(flags.checkpoint)) {
    const CheckpointReader reader = open_checkpoint(flags.checkpoint);
    if (!tasks::is_of_text(reader.info())) {
      return export_images(reader, flags.out_dir, max_shard_bytes);
    }
  }
  const tasks::TextModel loaded = tasks::load_text_model(flags.checkpoint);
  const size_t files =
      save_hugging_face(flags.out_dir, *loaded.model, max_shard_bytes);
  fmt::print("{} -> {}: config.json, {}, {}\n", loaded.checkpoint,
             flags.out_dir, names_of_weights(files),
             save_tokenizer(flags.out_dir, loaded));
}

}  // namespace

void add_export(CLI::App& app) {
  auto* command =
      add_command(app, "export", "Export to transformers or torchvision");
  auto flags = std::make_shared<ExportFlags>();
  add_options(
      *command,
      {checkpoint_option(flags->checkpoint),
       {.name = "--out-dir",
        .value = &flags->out_dir,
        .help = "a new folder: for from_pretrained() of transformers or "
                "load_state_dict() of torchvision, or for --init-from",
        .type = "DIR",
        .default_text = "required"},
       {.name = "--max-shard-size",
        .value = &flags->max_shard_size,
        .help = "largest file of weights, such as 5GB or 200MB; a larger model "
                "is written to several files and an index",
        .type = "SIZE"}});
  command->callback([flags] { run(*flags); });
}

}  // namespace lockstep::cli
