// Mutates a safetensors file part by part. With random changes, nearly every
// file would be refused for the length of its header, or for inconsistent
// offsets.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace lockstep::fuzz {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPrefixBytes = sizeof(uint64_t);

struct Parts {
  std::string header;
  std::string data;
};

Parts split(std::string_view file) {
  uint64_t length = 0;
  if (file.size() < kPrefixBytes) return {.header = "{}", .data = ""};
  std::memcpy(&length, file.data(), kPrefixBytes);
  file.remove_prefix(kPrefixBytes);
  length = std::min<uint64_t>(length, file.size());
  return {.header = std::string(file.substr(0, length)),
          .data = std::string(file.substr(length))};
}

void mutate(std::string& part, size_t max_size) {
  const size_t size = part.size();
  part.resize(std::max(size, max_size));
  auto* bytes = reinterpret_cast<uint8_t*>(part.data());
  part.resize(LLVMFuzzerMutate(bytes, size, part.size()));
}

// Returns nothing if `entry` is not a tensor, or has more bytes than fit into
// 64 bits.
std::optional<uint64_t> bytes_of(const Json& entry) {
  if (!entry.is_object() || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry["dtype"].is_string()) {
    return std::nullopt;
  }
  const auto dtype = entry["dtype"].get<std::string>();
  uint64_t bytes = dtype.ends_with("64")   ? 8
                   : dtype.ends_with("32") ? 4
                   : dtype.ends_with("16") ? 2
                                           : 1;
  for (const Json& extent : entry["shape"]) {
    if (!extent.is_number_unsigned() ||
        __builtin_mul_overflow(bytes, extent.get<uint64_t>(), &bytes)) {
      return std::nullopt;
    }
  }
  return bytes;
}

// Lays the tensors out one after another, as a writer does. The header also
// lists tensors that don't fit.
void lay_out(Parts& parts, size_t max_size) {
  constexpr int kDeepest = 4;
  Json root = Json::parse(
      parts.header,
      [](int depth, Json::parse_event_t, Json&) { return depth <= kDeepest; },
      /*allow_exceptions=*/false);
  if (!root.is_object()) return;
  uint64_t end = 0;
  for (auto& [name, entry] : root.items()) {
    const uint64_t begin = end;
    const auto bytes = bytes_of(entry);
    if (!bytes || __builtin_add_overflow(begin, *bytes, &end)) {
      end = begin;
      continue;
    }
    entry["data_offsets"] = {begin, end};
  }
  parts.header =
      root.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  parts.data.resize(std::min<uint64_t>(end, max_size));
}

size_t join(const Parts& parts, uint8_t* file, size_t max_size) {
  const uint64_t length = parts.header.size();
  const size_t data =
      std::min(max_size - kPrefixBytes - length, parts.data.size());
  std::memcpy(file, &length, kPrefixBytes);
  std::memcpy(file + kPrefixBytes, parts.header.data(), length);
  std::memcpy(file + kPrefixBytes + length, parts.data.data(), data);
  return kPrefixBytes + length + data;
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* file, size_t size,
                                          size_t max_size, unsigned seed) {
  using namespace lockstep::fuzz;
  std::minstd_rand random(seed);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  if (max_size < 2 * kPrefixBytes || one_in(16)) {
    return LLVMFuzzerMutate(file, size, max_size);
  }
  Parts parts = split({reinterpret_cast<const char*>(file), size});
  const size_t room = max_size - kPrefixBytes;
  if (!parts.data.empty() && one_in(8)) {
    mutate(parts.data, room - parts.header.size());
  } else {
    mutate(parts.header, room);
    if (one_in(2)) lay_out(parts, room);
  }
  // A file that doesn't fit is useless, so change the same file in another way.
  if (parts.header.size() > room) return LLVMFuzzerMutate(file, size, max_size);
  return join(parts, file, max_size);
}
