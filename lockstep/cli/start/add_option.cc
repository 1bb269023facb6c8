#include "lockstep/cli/start/add_option.h"

#include <string_view>
#include <variant>

namespace lockstep::cli {
namespace {

// Names of groups that only --help-all shows begin with it.
constexpr std::string_view kDetails = "Details: ";

// Adds an option without a value. "--no-eval=false" turns it off again.
CLI::Option* add_flag(CLI::App& app, const Option& option) {
  return app
      .add_option(
          option.name,
          [option](const CLI::results_t& words) {
            bool is_on = false;
            if (!CLI::detail::lexical_cast(words.back(), is_on)) return false;
            set_value(option, is_on ? "true" : "false");
            return true;
          },
          option.help + " [no]")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->expected(0);
}

CLI::Option* add_value(CLI::App& app, const Option& option) {
  return app.add_option(
      option.name,
      [option](const CLI::results_t& words) {
        set_value(option, words.back());
        return true;
      },
      option.help, /*defaulted=*/false,
      [option] { return value_text(option); });
}

// CLI11 decides by the type of a list how many words it takes.
CLI::Option* add_list(CLI::App& app, const Option& option) {
  if (auto* const* numbers =
          std::get_if<std::vector<int64_t>*>(&option.value)) {
    return app.add_option(option.name, **numbers, option.help);
  }
  return app.add_option(option.name,
                        *std::get<std::vector<std::string>*>(option.value),
                        option.help);
}

std::string type_of(const Option& option) {
  if (!option.type.empty()) return option.type;
  if (is_list(option)) return option.words.empty() ? "N,N" : "A,B";
  if (!option.words.empty()) return "NAME";
  const bool is_fraction =
      std::holds_alternative<double*>(option.value) ||
      std::holds_alternative<std::optional<double>*>(option.value);
  return is_fraction ? "X" : "N";
}

}  // namespace

CLI::Option* add_option(CLI::App& app, const Option& option) {
  CLI::Option* added = is_flag(option)   ? add_flag(app, option)
                       : is_list(option) ? add_list(app, option)
                                         : add_value(app, option);
  if (is_list(option) && !option.type.ends_with("...")) added->delimiter(',');
  if (!is_flag(option)) added->type_name(type_of(option));
  if (!option.words.empty() || option.range) {
    const auto check = [option](std::string& text) {
      return refusal(option, text);
    };
    added->check(CLI::Validator(check, ""));
  }
  if (option.is_required) added->required()->default_str("");
  if (!option.default_text.empty()) added->default_str(option.default_text);
  if (!option.topic.empty()) {
    added->group(std::string(kDetails) + option.topic);
  } else if (!option.group.empty()) {
    added->group(option.group);
  }
  return added;
}

void add_options(CLI::App& app, const std::vector<Option>& options) {
  for (const Option& option : options) add_option(app, option);
  for (const Option& option : options) {
    if (option.needs.empty()) continue;
    app.get_option(option.name)->needs(app.get_option(option.needs));
  }
}

std::string topic_of_details(const std::string& group) {
  return group.starts_with(kDetails) ? group.substr(kDetails.size()) : "";
}

}  // namespace lockstep::cli
