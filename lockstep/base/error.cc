#include "lockstep/base/error.h"

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
  const auto* own = dynamic_cast<const Error*>(&error);
  return own ? std::string(own->text()) : error.what();
}

}  // namespace lockstep
