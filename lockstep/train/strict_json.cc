#include "lockstep/train/strict_json.h"

#include <algorithm>
#include <unordered_set>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 3;
constexpr int kMaxListed = 64;

// Sees every key and value as it is parsed.
class HeaderGuard {
 public:
  explicit HeaderGuard(const std::string& path) : path_(path) {}

  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    using Event = json::parse_event_t;
    if (depth > kMaxDepth) refuse("nests its entries too deep");
    if (event == Event::object_start) {
      keys_.clear();
    } else if (event == Event::array_start) {
      values_ = 0;
    } else if (event == Event::value && depth == kMaxDepth) {
      if (++values_ > kMaxListed) {
        refuse(fmt::format("lists more than {} numbers", kMaxListed));
      }
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (depth == 1) order_.push_back(key);
      if (!(depth == 1 ? names_ : keys_).insert(key).second) {
        throw CheckpointError(
            {.what = fmt::format("{}: the header has {} twice{}", path_,
                                 quote(key), within(depth))});
      }
    }
    return true;
  }

  std::vector<std::string> take_order() { return std::move(order_); }

 private:
  std::string within(int depth) const {
    return depth == 1 || order_.empty() ? ""
                                        : " within " + quote(order_.back());
  }

  void refuse(const std::string& what) const {
    throw CheckpointError(
        {.what = fmt::format("{}: the header {}{}", path_, what, within(2))});
  }

  const std::string& path_;
  std::vector<std::string> order_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> keys_;
  int values_ = 0;
};

// nlohmann-json repeats what it read last: all of a long name, as it is.
std::string reason(const json::exception& error) {
  constexpr size_t kLongest = 200;
  std::string text = error.what();
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  std::replace_if(
      text.begin(), text.end(),
      [](char letter) { return letter < ' ' || letter > '~'; }, '?');
  return text;
}

}  // namespace

OrderedJson parse_strict_json(const std::string& path, std::string_view text) {
  HeaderGuard guard(path);
  // nlohmann-json takes this for the end, and leaves unread what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    throw CheckpointError({.what = path + ": the header is not JSON",
                           .got = fmt::format("a zero at byte {}", zero),
                           .fix = "the file is damaged or not safetensors"});
  }
  try {
    json root = json::parse(text, [&guard](int depth, json::parse_event_t event,
                                           const json& parsed) {
      return guard(depth, event, parsed);
    });
    return {.root = std::move(root), .order = guard.take_order()};
  } catch (const json::exception& error) {
    throw CheckpointError({.what = path + ": the header is not JSON",
                           .got = reason(error),
                           .fix = "the file is damaged or not safetensors"});
  }
}

std::string quote(const std::string& name) {
  constexpr size_t kLongest = 120;
  std::string text = json(name).dump(-1, ' ', /*ensure_ascii=*/true,
                                     json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...\"";
  return text;
}

std::string brief(const json& value) {
  return value.is_structured() ? fmt::format("an {} of {} entries",
                                             value.type_name(), value.size())
         : value.is_string()   ? quote(value.get<std::string>())
                               : value.dump();
}

}  // namespace lockstep
