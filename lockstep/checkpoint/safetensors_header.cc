#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";

struct DtypeName {
  std::string_view name;
  torch::ScalarType dtype;
};

constexpr std::array<DtypeName, 10> kDtypes{{{"F64", torch::kFloat64},
                                             {"F32", torch::kFloat32},
                                             {"F16", torch::kFloat16},
                                             {"BF16", torch::kBFloat16},
                                             {"I64", torch::kInt64},
                                             {"I32", torch::kInt32},
                                             {"I16", torch::kInt16},
                                             {"I8", torch::kInt8},
                                             {"U8", torch::kUInt8},
                                             {"BOOL", torch::kBool}}};

[[noreturn]] void refuse_tensor(const std::string& path,
                                const std::string& name,
                                const std::string& what,
                                const std::string& expected,
                                const std::string& got) {
  refuse_safetensors(fmt::format("{}: tensor {} {}", path, quote(name), what),
                     expected, got);
}

// Reads the object that describes one tensor.
class EntryReader {
 public:
  EntryReader(const std::string& path, const std::string& name,
              const json& object)
      : path_(path), name_(name), object_(object) {
    if (!object.is_object()) {
      refuse("has no description", "an object", brief(object));
    }
    for (const auto& [key, value] : object.items()) {
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        refuse("has an unknown key", "dtype, shape, data_offsets", quote(key));
      }
    }
  }

  SafeTensorsEntry read() const {
    SafeTensorsEntry entry{.name = name_};
    entry.dtype = dtype();
    uint64_t bytes = c10::elementSize(entry.dtype);
    // For strides LibTorch treats a zero as a one, so strides can overflow in a
    // tensor of no bytes.
    int64_t stride = 1;
    for (const uint64_t extent : numbers("shape")) {
      if (__builtin_mul_overflow(bytes, extent, &bytes) ||
          __builtin_mul_overflow(stride, std::max(extent, uint64_t{1}),
                                 &stride)) {
        refuse("has a shape that overflows", "a size in 63 bits",
               field("shape").dump());
      }
      entry.shape.push_back(static_cast<int64_t>(extent));
    }
    const std::vector<uint64_t> offsets = numbers("data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
      refuse("has bad data_offsets", "[begin, end] with begin <= end",
             field("data_offsets").dump());
    }
    entry.begin = offsets[0];
    entry.end = offsets[1];
    if (entry.end - entry.begin != bytes) {
      refuse("has a size that differs from its type and shape",
             fmt::format("{} bytes for {} {}", bytes,
                         safetensors_dtype(entry.dtype), field("shape").dump()),
             fmt::format("{} bytes", entry.end - entry.begin));
    }
    return entry;
  }

 private:
  const json& field(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      refuse(fmt::format("has no {}", key), "", "");
    }
    return *found;
  }

  torch::ScalarType dtype() const {
    const json& value = field("dtype");
    for (const auto& known : kDtypes) {
      if (value == known.name) return known.dtype;
    }
    std::vector<std::string_view> known_names;
    for (const auto& known : kDtypes) known_names.push_back(known.name);
    refuse("has an unknown dtype",
           fmt::format("one of {}", fmt::join(known_names, ", ")),
           brief(value));
  }

  std::vector<uint64_t> numbers(const char* key) const {
    const json& list = field(key);
    if (!list.is_array()) {
      refuse(fmt::format("has a bad {}", key), "a list", brief(list));
    }
    std::vector<uint64_t> result;
    for (const json& number : list) {
      if (!number.is_number_unsigned()) {
        refuse(fmt::format("has a bad {}", key),
               "whole numbers of 64 bits, none negative", brief(number));
      }
      result.push_back(number.get<uint64_t>());
    }
    return result;
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& expected,
                           const std::string& got) const {
    refuse_tensor(path_, name_, what, expected, got);
  }

  const std::string& path_;
  const std::string& name_;
  const json& object_;
};

std::map<std::string, std::string> read_metadata(const std::string& path,
                                                 const json& object) {
  std::map<std::string, std::string> metadata;
  if (!object.is_object()) {
    refuse_safetensors(path + ": bad __metadata__", "an object of strings",
                       brief(object));
  }
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) {
      refuse_safetensors(
          fmt::format("{}: bad __metadata__ {}", path, quote(key)), "a string",
          brief(value));
    }
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Checks that every byte belongs to exactly one tensor. Writers of this format
// do not leave holes, in which bytes could be hidden, or use bytes twice.
void check_coverage(const std::string& path,
                    const std::vector<SafeTensorsEntry>& entries,
                    uint64_t data_bytes) {
  std::vector<const SafeTensorsEntry*> order;
  for (const auto& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t covered = 0;
  for (const auto* entry : order) {
    if (entry->begin != covered) {
      refuse_tensor(path, entry->name,
                    entry->begin < covered ? "overlaps the tensor before it"
                                           : "leaves a hole before its data",
                    fmt::format("data from byte {}", covered),
                    fmt::format("from byte {}", entry->begin));
    }
    if (entry->end > data_bytes) {
      refuse_tensor(path, entry->name,
                    "lies beyond the end of the file (truncated?)",
                    fmt::format("{} bytes of data", entry->end),
                    fmt::format("{}", data_bytes));
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    refuse_safetensors(path + ": there are bytes that no tensor accounts for",
                       fmt::format("{} bytes of data", covered),
                       fmt::format("{}", data_bytes));
  }
}

}  // namespace

void refuse_safetensors(const std::string& what, const std::string& expected,
                        const std::string& got) {
  throw CheckpointError({.code = ErrorCode::kMalformedData,
                         .what = what,
                         .expected = expected,
                         .got = got});
}

std::string_view safetensors_dtype(torch::ScalarType dtype) {
  for (const auto& known : kDtypes) {
    if (known.dtype == dtype) return known.name;
  }
  throw CheckpointError(
      {.code = ErrorCode::kCheckpointNotSaved,
       .what = fmt::format("safetensors can't hold tensors of type {}",
                           c10::toString(dtype)),
       .fix = "convert them first"});
}

std::string format_safetensors_header(const SafeTensorsHeader& header) {
  std::string text = "{";
  std::set<std::string_view> names{kMetadata};
  try {
    if (!header.metadata.empty()) {
      text +=
          fmt::format("\"{}\":{},", kMetadata, json(header.metadata).dump());
    }
    for (const auto& entry : header.entries) {
      if (!names.insert(entry.name).second) {
        throw CheckpointError(
            {.code = ErrorCode::kCheckpointNotSaved,
             .what = fmt::format("can't write two tensors named {}, or one "
                                 "with a reserved name",
                                 quote(entry.name))});
      }
      text += fmt::format(
          R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}},)",
          json(entry.name).dump(), safetensors_dtype(entry.dtype),
          fmt::join(entry.shape, ","), entry.begin, entry.end);
    }
  } catch (const json::exception& error) {
    throw CheckpointError({.code = ErrorCode::kCheckpointNotSaved,
                           .what = "a name or metadata is not UTF-8",
                           .got = text_of(error)});
  }
  if (text.back() == ',') text.pop_back();
  text += "}";
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxSafeTensorsHeader) {
    throw CheckpointError(
        {.code = ErrorCode::kCheckpointNotSaved,
         .what = "the names and shapes do not fit",
         .expected = fmt::format("a header of {} bytes", kMaxSafeTensorsHeader),
         .got = fmt::format("{}", text.size())});
  }
  return text;
}

SafeTensorsHeader parse_safetensors_header(const std::string& path,
                                           std::string_view text,
                                           uint64_t data_bytes) {
  const OrderedJson parsed =
      parse_strict_json(path, text, {.fail = fail_checkpoint});
  const json& root = parsed.root;
  // JSON allows spaces or a byte order mark here, the format does not.
  if (!root.is_object() || !text.starts_with('{')) {
    refuse_safetensors(path + ": bad header",
                       "a JSON object from its first byte on",
                       root.is_object() ? "something before it" : brief(root));
  }
  SafeTensorsHeader header;
  for (const std::string& name : parsed.order) {
    if (name == kMetadata) {
      header.metadata = read_metadata(path, root[name]);
    } else {
      header.entries.push_back(EntryReader(path, name, root[name]).read());
    }
  }
  check_coverage(path, header.entries, data_bytes);
  return header;
}

}  // namespace lockstep
