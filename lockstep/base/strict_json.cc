#include "lockstep/base/strict_json.h"

#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/classic_locale.h"
#include "lockstep/base/printable.h"

namespace lockstep {
namespace {

using nlohmann::json;

[[noreturn]] void fail_with(const JsonLimits& limits, const Problem& problem) {
  limits.fail(problem);
  std::abort();  // not reached, because fail() throws
}

[[noreturn]] void refuse_text(const JsonLimits& limits, const std::string& path,
                              std::string got) {
  constexpr size_t kLongest = 200;
  if (got.size() > kLongest) got = got.substr(0, kLongest) + "...";
  fail_with(limits, {.code = ErrorCode::kMalformedData,
                     .what = path + " holds what is not JSON",
                     .got = printable_ascii(std::move(got)),
                     .fix = "the file is damaged or of another kind"});
}

// Builds the document while it is parsed. json::parse with a callback would be
// slower: at the end of each object it goes through all of the parent.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  StrictBuilder(const std::string& path, const JsonLimits& limits)
      : path_(path), limits_(limits) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override {
    return add(value);
  }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { return false; }  // not in JSON
  bool start_object(size_t) override { return open(json::object()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    const bool is_of_root = open_.size() == 1;
    const auto [place, is_new] = open_.back()->emplace(name, nullptr);
    if (!is_new) {
      refuse(fmt::format("has {} twice{}", quote(name),
                         is_of_root ? "" : within()));
    }
    value_ = &*place;
    if (is_of_root) order_.push_back(std::move(name));
    return true;
  }

  // The message of nlohmann-json includes its last input, even a long name.
  bool parse_error(size_t, const std::string&,
                   const json::exception& error) override {
    refuse_text(limits_, path_, text_of(error));
  }

  OrderedJson take() {
    return {.root = std::move(root_), .order = std::move(order_)};
  }

 private:
  bool add(json value) {
    if (!open_.empty() && open_.back()->is_array()) {
      if (open_.back()->size() == limits_.listed) {
        refuse(fmt::format("lists more than {} values{}", limits_.listed,
                           within()));
      }
      open_.back()->push_back(nullptr);
      value_ = &open_.back()->back();
    }
    *value_ = std::move(value);
    return true;
  }

  bool open(json container) {
    if (open_.size() == limits_.depth) {
      refuse("nests its entries too deep" + within());
    }
    add(std::move(container));
    open_.push_back(value_);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string within() const {
    return order_.empty() ? "" : " within " + quote(order_.back());
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail_with(limits_, {.code = ErrorCode::kMalformedData,
                        .what = fmt::format("{}: its JSON {}", path_, what)});
  }

  const std::string& path_;
  const JsonLimits& limits_;
  json root_;
  json* value_ = &root_;     // place of the next value, unless in a list
  std::vector<json*> open_;  // the containers around it
  std::vector<std::string> order_;
};

}  // namespace

OrderedJson parse_strict_json(const std::string& path, std::string_view text,
                              const JsonLimits& limits) {
  // nlohmann-json takes a zero byte for the end and ignores what follows.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    refuse_text(limits, path, fmt::format("a zero at byte {}", zero));
  }
  StrictBuilder builder(path, limits);
  const ClassicLocale scope;
  json::sax_parse(text, &builder);
  return builder.take();
}

void fail_checkpoint(const Problem& problem) { throw CheckpointError(problem); }
void fail_data(const Problem& problem) { throw DataError(problem); }

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
