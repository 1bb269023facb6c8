#include "lockstep/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <span>
#include <unistd.h>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/input_file.h"
#include "lockstep/base/strict_json.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little,
              "safetensors are little-endian, and written as they lie");

constexpr uint64_t kPrefixBytes = 8;

// A regular file that is read at given offsets. It is not mapped: if the file
// is truncated during a read, that must be an error, not a SIGBUS.
class InputFile {
 public:
  explicit InputFile(const std::string& path) : path_(path) {
    try {
      file_ = open_regular_file(path);
    } catch (const IoError& error) {
      fail_checkpoint({.code = error.code(), .what = text_of(error)});
    }
  }

  uint64_t bytes() const { return static_cast<uint64_t>(file_.status.st_size); }

  void read(uint64_t offset, std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t got = pread(file_.descriptor.get(), into.data(),
                                into.size(), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        throw CheckpointError(
            {.code = ErrorCode::kFileAccess,
             .what = fmt::format("can't read {} at byte {}", path_, offset),
             .got = got == 0 ? "the end of the file" : std::strerror(errno)});
      }
      offset += static_cast<uint64_t>(got);
      into = into.subspan(static_cast<size_t>(got));
    }
  }

 private:
  const std::string& path_;
  RegularFile file_;
};

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

// Refuses a file of torch.save, which is a zip archive, or a pickle before
// PyTorch 1.6.
void refuse_torch_save(const std::string& path, const InputFile& file) {
  std::array<unsigned char, kPrefixBytes + 1> begin{};
  if (file.bytes() < begin.size()) return;
  file.read(0, std::as_writable_bytes(std::span(begin)));
  if (begin.back() == '{') return;  // a header of this format
  constexpr std::array<unsigned char, 4> kZip{'P', 'K', 3, 4};
  const bool is_zip = std::equal(kZip.begin(), kZip.end(), begin.begin());
  const bool is_pickle = begin[0] == 0x80 && begin[1] >= 2 && begin[1] <= 5;
  if (!is_zip && !is_pickle) return;
  throw CheckpointError(
      {.code = ErrorCode::kMalformedData,
       .what = path + " is no safetensors file",
       .expected = "tensors only, as the Python package safetensors saves them",
       .got = fmt::format("a file of torch.save ({})",
                          is_zip ? "a zip archive" : "a pickle"),
       .fix = fmt::format(
           "convert it, in Python: from safetensors.torch import save_file; "
           "save_file({{k: v.contiguous() for k, v in torch.load('{}', "
           "weights_only=True).items()}}, 'model.safetensors')",
           path)});
}

std::string read_header(const std::string& path, const InputFile& file) {
  uint64_t length = 0;
  if (file.bytes() < kPrefixBytes) {
    refuse_safetensors(path + " is too short", "8 bytes and a header",
                       fmt::format("{} bytes", file.bytes()));
  }
  file.read(0, std::as_writable_bytes(std::span(&length, 1)));
  refuse_torch_save(path, file);
  if (length > kMaxSafeTensorsHeader) {
    throw CheckpointError(
        {.code = ErrorCode::kMalformedData,
         .what = path + ": the header's length can't be right",
         .expected = fmt::format("at most {} bytes", kMaxSafeTensorsHeader),
         .got = fmt::format("{}", length),
         .fix = "the file is damaged or not safetensors"});
  }
  if (length > file.bytes() - kPrefixBytes) {
    refuse_safetensors(path + " ends within its header",
                       fmt::format("{} bytes of header", length),
                       fmt::format("{}", file.bytes() - kPrefixBytes));
  }
  std::string header(length, '\0');
  file.read(kPrefixBytes, std::as_writable_bytes(std::span(header)));
  return header;
}

// Allocates a tensor. Its bytes are in the file, but a sparse file may still
// promise more than the machine's memory.
torch::Tensor allocate(const std::string& path, const SafeTensorsEntry& entry) {
  try {
    return torch::empty(entry.shape, entry.dtype);
  } catch (const c10::Error& error) {
    throw CheckpointError(
        {.code = ErrorCode::kOutOfMemory,
         .what = fmt::format("{}: no memory for tensor {}", path,
                             quote(entry.name)),
         .expected = fmt::format("{} bytes", entry.end - entry.begin),
         .got = error.what_without_backtrace()});
  }
}

torch::Tensor read_tensor(const std::string& path, const InputFile& file,
                          const SafeTensorsEntry& entry, uint64_t data_begin) {
  torch::Tensor tensor = allocate(path, entry);
  const auto bytes = bytes_of(tensor);
  file.read(data_begin + entry.begin, bytes);
  // A bool that is neither 0 nor 1 would lead to undefined behaviour later.
  if (entry.dtype == torch::kBool &&
      std::any_of(bytes.begin(), bytes.end(),
                  [](std::byte value) { return value > std::byte{1}; })) {
    refuse_safetensors(
        fmt::format("{}: tensor {} of type BOOL", path, quote(entry.name)),
        "bytes 0 and 1", "others");
  }
  return tensor;
}

}  // namespace

void write_safetensors(const std::string& path, const SafeTensors& content,
                       Checksum* checksum) {
  SafeTensorsHeader header{.entries = {}, .metadata = content.metadata};
  for (const auto& [name, tensor] : content.tensors) {
    if (!tensor.defined() || tensor.layout() != torch::kStrided) {
      throw CheckpointError(
          {.code = ErrorCode::kFileAccess,
           .what = "can't write tensor " + name,
           .expected = "a dense tensor",
           .got = tensor.defined() ? "a sparse one" : "an undefined one"});
    }
    header.entries.push_back({.name = name,
                              .dtype = tensor.scalar_type(),
                              .shape = tensor.sizes().vec()});
  }
  // Wide types first, as in the Python package. Without padding, each tensor's
  // data are then aligned to its type, as readers require.
  std::vector<size_t> order(content.tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto& tensors = content.tensors;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return tensors[a].second.element_size() > tensors[b].second.element_size();
  });
  uint64_t offset = 0;
  for (const size_t i : order) {
    header.entries[i].begin = offset;
    offset += static_cast<uint64_t>(tensors[i].second.numel()) *
              static_cast<uint64_t>(tensors[i].second.element_size());
    header.entries[i].end = offset;
  }
  const std::string text = format_safetensors_header(header);
  const uint64_t length = text.size();

  AtomicFile file(path);
  const auto write = [&](std::span<const std::byte> bytes) {
    file.write(bytes);
    if (checksum != nullptr) checksum->add(bytes);
  };
  write(std::as_bytes(std::span(&length, 1)));
  write(std::as_bytes(std::span(text.data(), text.size())));
  for (const size_t i : order) {
    const torch::Tensor tensor =
        tensors[i].second.detach().to(torch::kCPU).contiguous();
    write(bytes_of(tensor));
  }
  file.commit();
}

SafeTensorsHeader read_safetensors_header(const std::string& path) {
  const InputFile file(path);
  const std::string text = read_header(path, file);
  return parse_safetensors_header(path, text,
                                  file.bytes() - kPrefixBytes - text.size());
}

SafeTensors read_safetensors(const std::string& path) {
  const InputFile file(path);
  const std::string text = read_header(path, file);
  const uint64_t data_begin = kPrefixBytes + text.size();
  const SafeTensorsHeader header =
      parse_safetensors_header(path, text, file.bytes() - data_begin);
  SafeTensors content{.tensors = {}, .metadata = header.metadata};
  for (const auto& entry : header.entries) {
    content.tensors.emplace_back(entry.name,
                                 read_tensor(path, file, entry, data_begin));
  }
  return content;
}

}  // namespace lockstep
