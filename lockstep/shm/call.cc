#include "lockstep/shm/call.h"

#include <fmt/format.h>

#include "lockstep/shm/fixed_text.h"

namespace lockstep::shm {
namespace {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::kNone:
      return "nothing";
    case Operation::kAllReduce:
      return "all_reduce";
    case Operation::kReduce:
      return "reduce";
    case Operation::kBroadcast:
      return "broadcast";
    case Operation::kAllGather:
      return "all_gather";
    case Operation::kGather:
      return "gather";
    case Operation::kScatter:
      return "scatter";
    case Operation::kReduceScatter:
      return "reduce_scatter";
    case Operation::kAllToAll:
      return "all_to_all";
    case Operation::kBarrier:
      return "barrier";
    case Operation::kShareMemory:
      return "shared_memory";
  }
  return "an unknown operation";
}

}  // namespace

std::array<char, 12> short_text(std::string_view text) {
  std::array<char, 12> result{};
  set_text(result, text);
  return result;
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

}  // namespace lockstep::shm
