#include "lockstep/transport/call.h"

#include <fmt/format.h>

#include "lockstep/transport/failure_text.h"

namespace lockstep::transport {
namespace {

std::string_view name_of(Operation operation) {
  constexpr std::array<std::string_view, 11> kNames{
      "nothing",    "all_reduce", "reduce",       "broadcast",
      "all_gather", "gather",     "scatter",      "reduce_scatter",
      "all_to_all", "barrier",    "shared_memory"};
  const auto index = static_cast<size_t>(operation);
  return index < kNames.size() ? kNames[index] : "an unknown operation";
}

}  // namespace

std::array<char, 12> short_text(std::string_view text) {
  std::array<char, 12> result{};
  set_text(result, text);
  return result;
}

void check_root(const Call& call, int rank, int ranks) {
  if (call.root >= -1 && call.root < ranks) return;
  throw InvalidArgument(
      "comm", {.code = ErrorCode::kBadRank,
               .what = fmt::format("rank {} calls {} with an invalid root",
                                   rank, call.describe()),
               .expected = fmt::format("a rank from 0 to {}", ranks - 1),
               .got = std::to_string(call.root)});
}

Problem sizes_differ(int sender, int receiver, size_t expected_bytes,
                     size_t sent_bytes) {
  return {.code = ErrorCode::kCallsDiffer,
          .what = fmt::format("all_to_all: rank {} sends rank {} another size "
                              "than that expects",
                              sender, receiver),
          .expected = fmt::format("{} bytes", expected_bytes),
          .got = fmt::format("{} bytes", sent_bytes),
          .fix = "make the split sizes of the two agree"};
}

std::string Call::describe() const {
  std::string result(name_of(operation));
  if (!text_of(reduction).empty()) {
    result += fmt::format(" ({})", text_of(reduction));
  }
  if (root >= 0) result += fmt::format(", root {}", root);
  if (!text_of(type).empty()) {
    result += elements == 0 ? fmt::format(", {}", text_of(type))
                            : fmt::format(", {} x {}", elements, text_of(type));
  }
  return result;
}

}  // namespace lockstep::transport
