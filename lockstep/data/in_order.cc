#include "lockstep/data/in_order.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"

namespace lockstep::data::detail {

void refuse_short_stream(int64_t samples, int64_t found) {
  throw InvalidArgument(
      "data",
      {.code = ErrorCode::kMisuse,
       .what = "the dataset ended within an epoch",
       .expected = counted(samples, "sample") + ", as in_order() was told",
       .got = fmt::format("{}", found),
       .fix = "tell in_order() how many there are, or begin again "
              "within the dataset"});
}

}  // namespace lockstep::data::detail
