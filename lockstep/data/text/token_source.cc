#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/data/text/tokens.h"

namespace lockstep::data {

void TokenSource::read(int64_t begin, std::span<int64_t> out) const {
  const auto count = static_cast<int64_t>(out.size());
  if (begin >= 0 && begin <= size() && count <= size() - begin) {
    read_checked(begin, out);
    return;
  }
  throw InvalidArgument(
      "data", {.code = ErrorCode::kBadOption,
               .what = fmt::format("{} has no {} tokens from token {} on",
                                   name(), count, begin),
               .expected = fmt::format("a part of the {} tokens", size())});
}

}  // namespace lockstep::data
