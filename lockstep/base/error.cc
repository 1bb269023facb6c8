#include "lockstep/base/error.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace lockstep {
namespace {

std::string describe(const Problem& problem) {
  std::string text = problem.what;
  if (!problem.expected.empty()) text += "; expected " + problem.expected;
  if (!problem.got.empty()) {
    text += (problem.expected.empty() ? "; got " : ", got ") + problem.got;
  }
  if (!problem.fix.empty()) text += "; " + problem.fix;
  return text;
}

}  // namespace

Error::Error(std::string_view component, const Problem& problem)
    : std::runtime_error(fmt::format("[{}] {} [{}]", component,
                                     describe(problem),
                                     name_of(problem.code.value))),
      code_(problem.code.value),
      text_begin_(component.size() + 3),
      text_size_(describe(problem).size()) {}

std::string_view Error::text() const noexcept {
  return std::string_view(what()).substr(text_begin_, text_size_);
}

std::string text_of(const std::exception& error) {
  if (const auto* own = dynamic_cast<const Error*>(&error)) {
    return std::string(own->text());
  }
  using FileError = std::filesystem::filesystem_error;
  if (const auto* file_error = dynamic_cast<const FileError*>(&error)) {
    return fmt::format("{}: {}", file_error->path1().string(),
                       file_error->code().message());
  }
  if (const auto* system_failure =
          dynamic_cast<const std::system_error*>(&error)) {
    return system_failure->code().message();
  }
  // nlohmann-json: "[json.exception.type_error.302] type must be number".
  const std::string_view text = error.what();
  const size_t name_end = text.find("] ");
  const bool has_name = text.starts_with("[json.exception.");
  return std::string(has_name && name_end != std::string_view::npos
                         ? text.substr(name_end + 2)
                         : text);
}

}  // namespace lockstep
