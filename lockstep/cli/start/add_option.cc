#include "lockstep/cli/start/add_option.h"

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/numbers.h"

namespace lockstep::cli {
namespace {

// Group names begin with it.
constexpr std::string_view kDetails = "Details: ";

std::string text_of(double value) { return fmt::format("{}", value); }

std::string text_of(const std::optional<double>& value) {
  return value ? text_of(*value) : std::string();
}

template <class Value>
CLI::Option* add(CLI::App& app, const std::string& name, Value& value,
                 const std::string& description) {
  const auto take = [&value](const CLI::results_t& words) {
    const auto number = parse_number<double>(words.back());
    if (number) value = *number;
    return number.has_value();
  };
  return app
      .add_option(name, take, description, /*defaulted=*/false,
                  [&value] { return text_of(value); })
      ->type_name("X");
}

}  // namespace

CLI::Option* add_number(CLI::App& app, const std::string& name, double& value,
                        const std::string& description) {
  return add(app, name, value, description);
}

CLI::Option* add_number(CLI::App& app, const std::string& name,
                        std::optional<double>& value,
                        const std::string& description) {
  return add(app, name, value, description);
}

CLI::Option* add_choice(CLI::App& app, const std::string& name,
                        std::string& value, std::vector<std::string> words,
                        const std::string& description) {
  return app.add_option(name, value, description)
      ->type_name("NAME")
      ->check(one_of(std::move(words)));
}

CLI::Option* add_path(CLI::App& app, const std::string& name, std::string& path,
                      const std::string& description, const std::string& type) {
  return app.add_option(name, path, description)
      ->type_name(type)
      ->default_str("none");
}

void show_in_details(CLI::App& app, const std::vector<DetailTopic>& topics) {
  for (const auto& [topic, options] : topics) {
    for (const auto& name : options) {
      app.get_option(name)->group(std::string(kDetails) + topic);
    }
  }
}

std::string topic_of_details(const std::string& group) {
  return group.starts_with(kDetails) ? group.substr(kDetails.size()) : "";
}

}  // namespace lockstep::cli
