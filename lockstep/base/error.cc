#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string message(std::string_view component, const Problem& problem) {
  std::string text = "[";
  text.append(component).append("] ").append(problem.what);
  if (!problem.expected.empty()) text += "; expected " + problem.expected;
  if (!problem.got.empty()) {
    text += (problem.expected.empty() ? "; got " : ", got ") + problem.got;
  }
  if (!problem.fix.empty()) text += "; " + problem.fix;
  text += " [" + std::string(name_of(problem.code.value)) + "]";
  return text;
}

}  // namespace

Error::Error(std::string_view component, const Problem& problem)
    : std::runtime_error(message(component, problem)),
      code_(problem.code.value) {}

}  // namespace lockstep
