#include "lockstep/cli/start/config_file.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/log.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/version.h"
#include "lockstep/cli/start/checks.h"
#include "lockstep/cli/start/gone.h"

namespace lockstep::cli {
namespace {

using nlohmann::json;

constexpr size_t kLargestConfig = 1 << 20;
constexpr const char* kConfig = "config";
constexpr const char* kVersionKey = "lockstep";
// Options that say where output goes. They do not change what is run.
const std::set<std::string> kOutputs{"tensorboard", kConfig, "help", "out-dir",
                                     "report", "resume", "trace",
                                     // These need one of the above.
                                     "allow-changes", "trace-steps"};

[[noreturn]] void fail_config(const Problem& problem) {
  throw InvalidArgument("usage", problem);
}

[[noreturn]] void refuse_config(const std::string& path,
                                const std::string& what) {
  throw BadUsage(fmt::format("[usage] {}: {}", path, what));
}

std::string long_name(const CLI::Option& option) {
  return option.get_lnames().empty() ? "" : option.get_lnames().front();
}

bool is_flag(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

const CLI::Option& option_of(const CLI::App& command, const std::string& path,
                             const std::string& key) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = long_name(*option);
    if (name.empty() || name == kConfig || name == "help") continue;
    if (name == key) return *option;
    names.push_back(name);
  }
  if (const auto instead = instead_of_option("--" + key); !instead.empty()) {
    refuse_config(
        path, fmt::format("the option {} is gone; {}", quote(key), instead));
  }
  const std::string near = nearest(key, names);
  refuse_config(
      path,
      fmt::format("unknown option {}; {} `lockstep help {}`", quote(key),
                  near.empty() ? "see" : "did you mean '" + near + "'? See",
                  command.get_name()));
}

/// Returns true if `text` contains characters that move a cursor or end the
/// line of a message.
bool has_controls(const std::string& text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto letter = static_cast<unsigned char>(text[i]);
    if (letter < ' ' || letter == 0x7f) return true;
    // U+0080 to U+009F in UTF-8.
    const bool is_pair = letter == 0xc2 && i + 1 < text.size();
    if (is_pair && static_cast<unsigned char>(text[i + 1]) < 0xa0) return true;
  }
  return false;
}

/// Returns the value as a user would type it, or nullopt if that is not
/// possible.
std::optional<std::string> text_of(const json& value) {
  if (value.is_string()) {
    auto text = value.get<std::string>();
    if (has_controls(text)) return std::nullopt;
    return text;
  }
  if (value.is_number()) return value.dump();
  if (!value.is_array() || value.empty()) return std::nullopt;
  std::string text;
  for (const json& item : value) {
    const auto word = item.is_array() ? std::nullopt : text_of(item);
    if (!word) return std::nullopt;
    text += (text.empty() ? "" : ",") + *word;
  }
  return text;
}

bool is_among(const std::vector<std::string>& arguments,
              const std::string& option) {
  return std::ranges::any_of(arguments, [&](const std::string& word) {
    return word == option || word.starts_with(option + "=");
  });
}

void check_version(const std::string& path, const json& value) {
  if (!value.is_string()) {
    refuse_config(
        path,
        fmt::format(
            "'{}' must be the version that wrote the file, a string, got {}",
            kVersionKey, brief(value)));
  }
  if (value.get<std::string>() == kVersion) return;
  log_warning("usage",
              fmt::format("{} was written by Lockstep {}; this is {}, "
                          "which may have other defaults",
                          path, quote(value.get<std::string>()), kVersion));
}

/// Returns the value of --config, if it is given.
std::optional<std::string> config_path(const std::vector<std::string>& words) {
  const std::string option = fmt::format("--{}", kConfig);
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with(option + "=")) {
      return words[i].substr(option.size() + 1);
    }
    if (words[i] == option && i + 1 < words.size()) return words[i + 1];
  }
  return std::nullopt;
}

/// Returns the text as a JSON value: a number if the text is one.
json value_of(const std::string& text) {
  const json number = try_parse_json(text);
  return number.is_number() && number.dump() == text ? number : json(text);
}

}  // namespace

void add_config_option(CLI::App& command, const std::string& written) {
  const std::string description =
      "JSON file with options of this command, named without dashes; the "
      "command line overrides it" +
      (written.empty() ? "" : ". " + written);
  command.add_option(fmt::format("--{}", kConfig), description)
      ->type_name("FILE");
}

std::vector<std::string> words_of_config(
    const CLI::App& command, const std::string& path, std::string_view text,
    const std::vector<std::string>& arguments) {
  const OrderedJson document =
      parse_strict_json(path, text, {.listed = 4096, .fail = fail_config});
  if (!document.root.is_object()) {
    refuse_config(path, fmt::format("expected an object of options, got {}",
                                    brief(document.root)));
  }
  std::vector<std::string> words;
  for (const std::string& key : document.order) {
    const json& value = document.root.at(key);
    if (key == kVersionKey) {
      check_version(path, value);
      continue;
    }
    const CLI::Option& option = option_of(command, path, key);
    const std::string name = "--" + key;
    if (is_flag(option)) {
      if (!value.is_boolean()) {
        refuse_config(path, fmt::format("'{}' must be true or false, got {}",
                                        key, brief(value)));
      }
      if (value.get<bool>() && !is_among(arguments, name)) {
        words.push_back(name);
      }
      continue;
    }
    const auto word = text_of(value);
    if (!word) {
      refuse_config(
          path, fmt::format(
                    "'{}' must be a number, a string or a list of them, got {}",
                    key, brief(value)));
    }
    if (!is_among(arguments, name)) words.push_back(name + "=" + *word);
  }
  return words;
}

std::vector<std::string> with_config(const CLI::App& app,
                                     std::vector<std::string> words) {
  const bool has_commands = !app.get_subcommands({}).empty();
  const CLI::App* command = &app;
  if (has_commands) {
    if (words.empty()) return words;
    command = nullptr;
    for (const CLI::App* other : app.get_subcommands({})) {
      if (other->get_name() == words.front()) command = other;
    }
  }
  if (command == nullptr ||
      command->get_option_no_throw(fmt::format("--{}", kConfig)) == nullptr) {
    return words;
  }
  const auto path = config_path(words);
  if (!path) return words;
  std::string text;
  try {
    text = read_file(*path, kLargestConfig);
  } catch (const IoError& error) {
    throw IoError(
        {.code = error.code(), .what = "--config: " + text_of(error)});
  }
  const std::vector<std::string> file_error =
      words_of_config(*command, *path, text, words);
  words.insert(words.begin() + (has_commands ? 1 : 0), file_error.begin(),
               file_error.end());
  return words;
}

std::string config_of(const CLI::App& command) {
  nlohmann::ordered_json object = {{kVersionKey, kVersion}};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = long_name(*option);
    if (name.empty() || kOutputs.contains(name) || option->count() == 0) {
      continue;
    }
    const auto results = option->reduced_results();  // the last one counts
    if (is_flag(*option)) {
      object[name] = option->as<bool>();
    } else if (results.size() == 1) {
      object[name] = value_of(results.front());
    } else {
      json list = json::array();
      for (const auto& result : results) list.push_back(value_of(result));
      object[name] = list;
    }
  }
  // File names need not be valid UTF-8.
  return object.dump(2, ' ', /*ensure_ascii=*/false,
                     json::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep::cli
