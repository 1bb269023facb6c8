#include "lockstep/report/comparison/same_work.h"

#include <cstdint>

#include <fmt/format.h>

namespace lockstep::report {
namespace {

std::string known(int64_t value) {
  return value > 0 ? std::to_string(value) : "";
}

}  // namespace

std::vector<std::string> differences_of_work(const train::RunReport& first,
                                             const train::RunReport& second) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* name, const std::string& a,
                           const std::string& b) {
    if (a.empty() || b.empty() || a == b) return;
    differences.push_back(fmt::format("{} {} and {}", name, a, b));
  };
  compare("model", first.model, second.model);
  compare("parameters", known(first.parameters), known(second.parameters));
  compare("batch_size", known(first.batch_size), known(second.batch_size));
  compare("tokens_of_sample", known(first.tokens_of_sample),
          known(second.tokens_of_sample));
  compare("precision", first.precision, second.precision);
  return differences;
}

}  // namespace lockstep::report
