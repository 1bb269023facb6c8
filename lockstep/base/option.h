#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {

/// Numbers that an option accepts. Infinities and NaN never are.
struct Range {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool excludes_least = false;
  bool excludes_most = false;

  bool contains(double value) const;
  /// Returns "a whole number from 1 to 4096" or "a number above 0".
  std::string text(bool is_whole) const;
};

constexpr Range at_least(double least) { return {.least = least}; }
constexpr Range between(double least, double most) {
  return {.least = least, .most = most};
}
constexpr Range above(double least) {
  return {.least = least, .excludes_least = true};
}

/// A value that is read and written as text, such as an enum by its names.
struct TextValue {
  std::function<std::string()> get;
  std::function<void(const std::string&)> set;
};

/// A flag that stands for something else than a bool that becomes true.
struct Switch {
  std::function<bool()> is_on;
  std::function<void(bool)> turn;
};

/// An option: everything that the command line, config.json, the checks and the
/// settings in checkpoints need to know about it. An option points to its
/// value, which must outlive it.
struct Option {
  using Value = std::variant<bool*, Switch, int*, int64_t*, uint64_t*, double*,
                             std::optional<int>*, std::optional<int64_t>*,
                             std::optional<double>*, std::string*,
                             std::optional<std::string>*, std::vector<int64_t>*,
                             std::vector<std::string>*, TextValue>;

  /// "--batch-size", or "-m,--module", or the name of an argument.
  std::string name;
  Value value;
  std::string help;
  /// Form of the value in the help. Default: N for whole numbers, X for other
  /// numbers, NAME for words, N,N and A,B for lists.
  std::string type{};
  /// Describes the default in the help. Empty: the value is shown.
  std::string default_text{};
  std::string group{};  ///< heading in the help
  /// Heading in the help if only --help-all shows the option. Overrides group.
  std::string topic{};
  /// Range of a number, or of each number of a list. A text with a range must
  /// be a whole number, or one of the words.
  std::optional<Range> range{};
  /// The words that a text, or each text of a list, can be. Empty: any.
  std::vector<std::string> words{};
  /// Words that are accepted as well, and that no message offers.
  std::vector<std::string> former_words{};
  bool is_required = false;  ///< must be given, on the command line
  /// Name of an option that must be given as well, on the command line.
  std::string needs{};
  /// Name in C++, if it is not the name with underscores.
  std::string member{};
  /// True if the bits of a run depend on the value, given the values of the
  /// other options. Checkpoints keep such values.
  bool changes_bits = false;
};

/// Returns the value of an option for an enum with to_string().
template <class T>
TextValue named(T& value, T (*parse)(const std::string&)) {
  return {
      .get = [&value] { return to_string(value); },
      .set = [&value, parse](const std::string& name) { value = parse(name); }};
}

/// Gives `group` to those of `options` that have neither a group nor a topic.
std::vector<Option> in_group(const std::string& group,
                             std::vector<Option> options);
/// Gives `topic` to those of `options` that have neither a group nor a topic.
std::vector<Option> in_topic(const std::string& topic,
                             std::vector<Option> options);

/// Returns the name without dashes at its beginning and with underscores:
/// "batch_size".
std::string key_of(const Option& option);

/// Returns true if the option is a flag, which is given without a value.
bool is_flag(const Option& option);
/// Returns true if the option takes several values.
bool is_list(const Option& option);

/// Returns the value as text: "64", "true", "bf16", "4,9,14", and "" for a
/// missing one.
std::string value_text(const Option& option);

/// Sets the value to what `text` says, which refusal() must accept. The
/// elements of a list are separated by commas.
void set_value(const Option& option, const std::string& text);

/// Returns what is wrong with `text` as the value, or as an element of a list:
/// "expected a whole number of at least 1, got '0'". Returns "" if it is fine.
std::string refusal(const Option& option, const std::string& text);

/// Returns true if the range, if there is one, contains the current value. A
/// missing value is fine.
bool is_in_range(const Option& option);
/// Returns what the range accepts.
std::string range_text(const Option& option);

}  // namespace lockstep
