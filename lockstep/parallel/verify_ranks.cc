#include "lockstep/parallel/verify_ranks.h"

#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string describe(const ModuleHandle& module) {
  std::string text;
  const auto add = [&](const char* kind, const ModuleHandle::Named& named) {
    for (const auto& [name, tensor] : named) {
      text += fmt::format(
          "{} '{}': {} {}{}{}\n", kind, name,
          c10::toString(tensor.scalar_type()), c10::str(tensor.sizes()),
          tensor.is_contiguous() ? ""
                                 : ", strides " + c10::str(tensor.strides()),
          tensor.requires_grad() ? "" : ", frozen");
    }
  };
  add("parameter", module.parameters);
  add("buffer", module.buffers);
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace

void verify_ranks(const World& world, const ModuleHandle& module) {
  const auto all = world.all_gather_text(describe(module));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const auto first = lines_of(all[0]);
    const auto other = lines_of(all[rank]);
    size_t i = 0;
    while (i < first.size() && i < other.size() && first[i] == other[i]) ++i;
    const auto at = [&](const std::vector<std::string>& lines) {
      return i < lines.size() ? lines[i] : std::string("no more");
    };
    throw InvalidArgument(
        "ddp",
        {.what = fmt::format("rank {} has another model than rank 0", rank),
         .expected = fmt::format("rank 0's {}", at(first)),
         .got = at(other),
         .fix = "build the same model on every rank"});
  }
}

}  // namespace lockstep
