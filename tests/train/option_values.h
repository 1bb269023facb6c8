#pragma once

#include <string>
#include <vector>

#include "lockstep/base/option.h"

namespace lockstep::training {

/// Returns values of an option as text: all words, or one or two others,
/// without its current value.
inline std::vector<std::string> other_values(const Option& option) {
  std::vector<std::string> values = option.words;
  if (is_flag(option)) values = {"true", "false"};
  if (option.range) {
    const auto least = static_cast<int64_t>(option.range->least);
    for (const int64_t more : {0, 1, 2}) {
      values.push_back(std::to_string(least + more));
    }
    values.emplace_back("0.5");
  }
  if (values.empty()) {
    values = {"auto", option.name == "--output-device" ? "cpu:0" : "loss"};
  }
  std::erase_if(values, [&](const std::string& value) {
    return value == value_text(option) || !refusal(option, value).empty();
  });
  if (option.words.empty() && values.size() > 2) values.resize(2);
  return values;
}

}  // namespace lockstep::training
