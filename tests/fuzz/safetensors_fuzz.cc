// Feeds bytes to read_safetensors as a file. Compares an accepted file with a
// plain reading of the format, and with the result of writing and reading it
// again.
#include <cstring>
#include <string_view>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "tests/fuzz/input.h"

namespace lockstep::fuzz {
namespace {

using nlohmann::json;

std::string_view bytes_of(const torch::Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Reads a file as the format describes it, without checks. Hostile files have
// been refused before.
void check_against_format(std::string_view file, const SafeTensors& content) {
  uint64_t length = 0;
  require(file.size() >= sizeof length, "accepted a file without a length");
  std::memcpy(&length, file.data(), sizeof length);
  file.remove_prefix(sizeof length);
  require(length <= file.size(), "accepted a header that is cut");
  const std::string_view header = file.substr(0, length);
  const std::string_view data = file.substr(length);
  require(header.starts_with('{'), "accepted a header without {");
  require(header.find('\0') == header.npos, "accepted a zero in the header");

  const json root = json::parse(header);
  require(root.size() == content.tensors.size() + root.count("__metadata__"),
          "the header has another number of tensors");
  size_t total = 0;
  for (const auto& [name, tensor] : content.tensors) {
    const json& entry = root.at(name);
    require(entry.at("dtype") == safetensors_dtype(tensor.scalar_type()),
            "a tensor has another dtype");
    require(entry.at("shape") == json(tensor.sizes().vec()),
            "a tensor has another shape");
    require(tensor.is_contiguous(), "a tensor is not contiguous");
    const auto begin = entry.at("data_offsets").at(0).get<size_t>();
    const auto end = entry.at("data_offsets").at(1).get<size_t>();
    require(begin <= end && end <= data.size(), "a tensor is not in the file");
    require(bytes_of(tensor) == data.substr(begin, end - begin),
            "a tensor has other bytes than the file");
    if (tensor.scalar_type() == torch::kBool) {
      const auto bytes = bytes_of(tensor);
      require(
          bytes.find_first_not_of(std::string_view("\0\1", 2)) == bytes.npos,
          "a BOOL is neither 0 nor 1");
    }
    total += end - begin;
  }
  require(total == data.size(), "tensors don't add up to the file");
}

void check_same(const SafeTensors& a, const SafeTensors& b) {
  require(a.metadata == b.metadata, "metadata changed");
  require(a.tensors.size() == b.tensors.size(), "tensors were lost");
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const auto& [name, tensor] = a.tensors[i];
    const auto& [other_name, other] = b.tensors[i];
    require(name == other_name, "a name changed");
    require(tensor.scalar_type() == other.scalar_type(), "a dtype changed");
    require(tensor.sizes() == other.sizes(), "a shape changed");
    require(bytes_of(tensor) == bytes_of(other), "bytes changed");
  }
}

void check_message(const std::exception& error) {
  constexpr size_t kLongest = 1000;
  require(std::string_view(error.what()).size() <= kLongest,
          "an error's message is too long");
  require_plain_message(error);
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  const fuzz::Input input({reinterpret_cast<const char*>(data), size});
  SafeTensors content;
  try {
    content = read_safetensors(input.path());
  } catch (const CheckpointError& error) {
    fuzz::check_message(error);
    return 0;
  }
  fuzz::check_against_format(input.bytes(), content);
  // A separate name, and in memory, because the writer syncs and renames.
  const fuzz::Output output;
  write_safetensors(output.path(), content);
  fuzz::check_same(content, read_safetensors(output.path()));
  return 0;
}
