#include "lockstep/base/option.h"

#include <algorithm>
#include <concepts>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/numbers.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

// Writes a value of type T as text, parses it and checks it.
template <class T>
struct Form;

template <Number T>
struct Form<T> {
  static constexpr bool kIsNumber = true;
  static constexpr bool kIsWhole = std::integral<T>;
  static std::string text(T value) { return fmt::format("{}", value); }
  static bool is_among(T value, const Range& range) {
    return range.contains(static_cast<double>(value));
  }
  static void set(T& value, const std::string& text) {
    value = parse_number<T>(text).value_or(value);
  }
  static bool accepts(const std::string& text, const Range& range) {
    const auto value = parse_number<T>(text);
    return value && is_among(*value, range);
  }
};

template <>
struct Form<std::string> {
  static constexpr bool kIsNumber = false;
  static constexpr bool kIsWhole = true;  // where it has a range
  static std::string text(const std::string& value) { return value; }
  static void set(std::string& value, const std::string& text) { value = text; }
};

template <class T>
struct Form<std::optional<T>> : Form<T> {
  static std::string text(const std::optional<T>& value) {
    return value ? Form<T>::text(*value) : "";
  }
  static bool is_among(const std::optional<T>& value, const Range& range) {
    return !value || Form<T>::is_among(*value, range);
  }
  static void set(std::optional<T>& value, const std::string& text) {
    Form<T>::set(value.emplace(), text);
  }
};

template <class T>
struct Form<std::vector<T>> : Form<T> {
  static std::string text(const std::vector<T>& value) {
    return fmt::format("{}", fmt::join(value, ","));
  }
  static bool is_among(const std::vector<T>& value, const Range& range) {
    return std::ranges::all_of(
        value, [&](const T& item) { return Form<T>::is_among(item, range); });
  }
  static void set(std::vector<T>& value, const std::string& text) {
    value.clear();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      Form<T>::set(value.emplace_back(), text.substr(begin, end - begin));
      begin = end + 1;
    }
  }
};

// Calls `use` with the form and the value of an option that isn't a flag, a
// TextValue among them.
template <class Result, class UseText, class Use>
Result visit_value(const Option& option, Result of_flag, UseText&& use_text,
                   Use&& use) {
  return std::visit(
      [&](const auto& value) -> Result {
        using Held = std::decay_t<decltype(value)>;
        if constexpr (std::same_as<Held, bool*> || std::same_as<Held, Switch>) {
          return of_flag;
        } else if constexpr (std::same_as<Held, TextValue>) {
          return use_text(value);
        } else {
          return use(Form<std::remove_pointer_t<Held>>(), *value);
        }
      },
      option.value);
}

bool is_word_of(const Option& option, const std::string& text) {
  const auto has = [&](const std::vector<std::string>& words) {
    return std::ranges::find(words, text) != words.end();
  };
  return has(option.words) || has(option.former_words);
}

bool is_number_of(const Option& option, const std::string& text) {
  if (!option.range) return false;
  const auto accepts = [&](auto form) {
    return form.accepts(text, *option.range);
  };
  return visit_value(
      option, false, [&](const TextValue&) { return accepts(Form<int64_t>()); },
      [&](auto form, const auto&) {
        if constexpr (decltype(form)::kIsNumber) {
          return accepts(form);
        } else {
          return accepts(Form<int64_t>());
        }
      });
}

}  // namespace

bool Range::contains(double value) const {
  return std::isfinite(value) &&
         (excludes_least ? value > least : value >= least) &&
         (excludes_most ? value < most : value <= most);
}

std::string Range::text(bool is_whole) const {
  const bool is_open = !std::isfinite(most);
  if (is_whole && !is_open) {
    return fmt::format("a whole number from {} to {}", least, most);
  }
  return fmt::format("a {}number {} {}", is_whole ? "whole " : "",
                     excludes_least ? "above" : "of at least", least) +
         (is_open ? ""
                  : fmt::format(" and {} {}",
                                excludes_most ? "below" : "at most", most));
}

std::vector<Option> in_group(const std::string& group,
                             std::vector<Option> options) {
  for (Option& option : options) {
    if (option.group.empty() && option.topic.empty()) option.group = group;
  }
  return options;
}

std::vector<Option> in_topic(const std::string& topic,
                             std::vector<Option> options) {
  for (Option& option : options) {
    if (option.group.empty() && option.topic.empty()) option.topic = topic;
  }
  return options;
}

std::string key_of(const Option& option) {
  std::string key = option.name.substr(
      std::min(option.name.find_first_not_of('-'), option.name.size()));
  std::ranges::replace(key, '-', '_');
  return key;
}

bool is_flag(const Option& option) {
  return std::holds_alternative<bool*>(option.value) ||
         std::holds_alternative<Switch>(option.value);
}

bool is_list(const Option& option) {
  return std::holds_alternative<std::vector<int64_t>*>(option.value) ||
         std::holds_alternative<std::vector<std::string>*>(option.value);
}

std::string value_text(const Option& option) {
  if (const auto* flag = std::get_if<bool*>(&option.value)) {
    return fmt::format("{}", **flag);
  }
  if (const auto* flag = std::get_if<Switch>(&option.value)) {
    return fmt::format("{}", flag->is_on());
  }
  return visit_value(
      option, std::string(), [](const TextValue& value) { return value.get(); },
      [](auto form, const auto& value) { return form.text(value); });
}

void set_value(const Option& option, const std::string& text) {
  if (const auto* flag = std::get_if<bool*>(&option.value)) {
    **flag = text == "true";
  }
  if (const auto* flag = std::get_if<Switch>(&option.value)) {
    flag->turn(text == "true");
  }
  visit_value(
      option, false,
      [&](const TextValue& value) {
        value.set(text);
        return true;
      },
      [&](auto form, auto& value) {
        form.set(value, text);
        return true;
      });
}

std::string refusal(const Option& option, const std::string& text) {
  if (option.words.empty() && !option.range) return "";
  if (is_word_of(option, text) || is_number_of(option, text)) return "";
  std::vector<std::string> expected;
  if (option.range) expected.push_back(range_text(option));
  if (!option.words.empty()) {
    expected.push_back(fmt::format("one of {}", fmt::join(option.words, ", ")));
  }
  const std::string near = nearest(text, option.words);
  return fmt::format("expected {}, got '{}'{}", fmt::join(expected, ", or "),
                     text,
                     near.empty() ? "" : "; did you mean '" + near + "'?");
}

bool is_in_range(const Option& option) {
  if (!option.range) return true;
  return visit_value(
      option, true, [](const TextValue&) { return true; },
      [&](auto form, const auto& value) {
        if constexpr (decltype(form)::kIsNumber) {
          return form.is_among(value, *option.range);
        } else {
          return true;
        }
      });
}

std::string range_text(const Option& option) {
  const bool is_whole = visit_value(
      option, true, [](const TextValue&) { return true; },
      [](auto form, const auto&) { return decltype(form)::kIsWhole; });
  return option.range ? option.range->text(is_whole) : "";
}

}  // namespace lockstep
