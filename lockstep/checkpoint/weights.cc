#include "lockstep/checkpoint/weights.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json.h"
#include "lockstep/base/output.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/checkpoint/manifest.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr size_t kLargestIndex = 64 << 20;

[[noreturn]] void refuse(const std::string& what, const std::string& expected,
                         const std::string& got) {
  throw CheckpointError(
      {.code = ErrorCode::kMalformedData,
       .what = what,
       .expected = expected,
       .got = got,
       .fix = "copy all files of the model again, or save it again"});
}

/// Returns true if `name` is that of a safetensors file in the same folder. A
/// path could lead outside the folder.
bool is_plain_name(const std::string& name) {
  return name.find('/') == name.npos && name.find('\0') == name.npos &&
         !name.starts_with('.') && name.ends_with(".safetensors");
}

/// The files of a folder, and which tensors each of them must have.
class Index {
 public:
  explicit Index(const std::string& folder) : path_(folder + "/" + kIndex) {
    const json root = parse_strict_json(path_, read_file(path_, kLargestIndex),
                                        {.fail = fail_checkpoint})
                          .root;
    const auto map = root.is_object() ? root.find("weight_map") : root.end();
    if (map == root.end() || !map->is_object() || map->empty()) {
      refuse(path_ + " has no usable weight_map",
             "the name of a file for each tensor",
             map == root.end() ? "none" : brief(*map));
    }
    for (const auto& [tensor, file] : map->items()) {
      if (!file.is_string() || !is_plain_name(file.get<std::string>())) {
        refuse(fmt::format("{}: tensor {} has no usable file", path_,
                           quote(tensor)),
               "the name of a .safetensors file in this folder", brief(file));
      }
      tensors_[file.get<std::string>()].insert(tensor);
    }
  }

  /// Returns the names of the files.
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& [file, tensors] : tensors_) names.push_back(file);
    return names;
  }

  /// Throws CheckpointError unless `file` has exactly the tensors that are
  /// listed for it.
  void check(const std::string& file,
             const std::set<std::string>& found) const {
    const std::set<std::string>& listed = tensors_.at(file);
    for (const std::string& tensor : found) {
      if (listed.contains(tensor)) continue;
      refuse(fmt::format("{} and {} contradict each other", path_, quote(file)),
             fmt::format("tensor {} in {}", quote(tensor), file_of(tensor)),
             "it in " + quote(file));
    }
    for (const std::string& tensor : listed) {
      if (found.contains(tensor)) continue;
      refuse(fmt::format("{} and {} contradict each other", path_, quote(file)),
             fmt::format("tensor {} in {}", quote(tensor), quote(file)),
             "a file without it");
    }
  }

  /// Throws CheckpointError if a file is missing.
  void check_exists(const std::string& folder, const std::string& file) const {
    std::error_code ignored;
    if (fs::exists(folder + "/" + file, ignored)) return;
    refuse(fmt::format("{} lists a file that is missing", path_),
           quote(file) + ", with tensor " + quote(*tensors_.at(file).begin()),
           "no such file");
  }

 private:
  std::string file_of(const std::string& tensor) const {
    for (const auto& [file, tensors] : tensors_) {
      if (tensors.contains(tensor)) return quote(file);
    }
    return "no file";
  }

  std::string path_;
  std::map<std::string, std::set<std::string>> tensors_;  ///< by file
};

std::set<std::string> names_of(const SafeTensors& content) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : content.tensors) names.insert(name);
  return names;
}

std::set<std::string> names_of(const SafeTensorsHeader& header) {
  std::set<std::string> names;
  for (const auto& entry : header.entries) names.insert(entry.name);
  return names;
}

/// Calls `take` with the path and the content of each file, as returned by
/// `read`, after it was compared with the index.
template <class Read, class Take>
void for_each_file(const std::string& folder, const Read& read,
                   const Take& take) {
  const std::string single = folder + "/" + kModelFile;
  if (fs::exists(single)) return take(single, read(single));
  if (!fs::exists(folder + "/" + kIndex)) {
    refuse_distributed_checkpoint(folder);
    throw CheckpointError(
        {.code = ErrorCode::kCheckpointMissing,
         .what = "there are no weights in " + folder,
         .expected = fmt::format("{} or {}", kModelFile, kIndex),
         .got = "neither"});
  }
  const Index index(folder);
  for (const std::string& file : index.files()) {
    index.check_exists(folder, file);
    const std::string path = folder + "/" + file;
    auto content = read(path);
    index.check(file, names_of(content));
    take(path, std::move(content));
  }
}

/// Divides the tensors into files, in order. A tensor that is larger than
/// `most` bytes has a file of its own.
std::vector<NamedTensors> split(const NamedTensors& tensors, uint64_t most) {
  std::vector<NamedTensors> shards;
  NamedTensors shard;
  uint64_t bytes = 0;
  for (const auto& item : tensors) {
    const uint64_t size = item.second.nbytes();
    if (size > most) {
      shards.push_back({item});
      continue;
    }
    if (bytes + size > most) {
      shards.push_back(std::exchange(shard, {}));
      bytes = 0;
    }
    shard.push_back(item);
    bytes += size;
  }
  if (!shard.empty() || shards.empty()) shards.push_back(std::move(shard));
  return shards;
}

void write_index(const std::string& folder,
                 const std::vector<std::string>& files,
                 const std::vector<NamedTensors>& shards) {
  uint64_t bytes = 0;
  int64_t elements = 0;
  json map = json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const auto& [name, tensor] : shards[i]) {
      map[name] = files[i];
      bytes += tensor.nbytes();
      elements += tensor.numel();
    }
  }
  const json index{
      {"metadata", {{"total_size", bytes}, {"total_parameters", elements}}},
      {"weight_map", std::move(map)}};
  write_atomically(folder + "/" + kIndex, index.dump(2) + "\n");
}

/// Returns true if the folder has files with parts of tensors, which PyTorch's
/// HuggingFaceStorageWriter writes with save_distributed=True.
bool has_parts_of_tensors(const std::string& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) {
      return true;
    }
  }
  return false;
}

/// Returns null if there is no head.
const torch::Tensor* find_head(const NamedTensors& tensors) {
  const auto found = std::ranges::find_if(
      tensors, [](const auto& item) { return item.first == kHeadName; });
  return found == tensors.end() ? nullptr : &found->second;
}

}  // namespace

bool has_weights(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path + "/" + kModelFile, ignored) ||
         fs::is_regular_file(path + "/" + kIndex, ignored);
}

NamedTensors read_weights(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return read_safetensors(path).tensors;
  NamedTensors tensors;
  for_each_file(path, read_safetensors,
                [&](const std::string&, SafeTensors content) {
                  for (auto& item : content.tensors) {
                    tensors.push_back(std::move(item));
                  }
                });
  return tensors;
}

std::map<std::string, SafeTensorsHeader> read_weight_headers(
    const std::string& folder) {
  std::map<std::string, SafeTensorsHeader> headers;
  for_each_file(folder, read_safetensors_header,
                [&](const std::string& path, SafeTensorsHeader header) {
                  headers.emplace(path, std::move(header));
                });
  return headers;
}

size_t write_weights(const std::string& folder, const NamedTensors& tensors,
                     uint64_t max_shard_bytes) {
  make_directories(folder);
  if (!fs::is_empty(folder)) {
    throw CheckpointError({.code = ErrorCode::kCheckpointNotSaved,
                           .what = folder + " is not empty",
                           .expected = "a new folder",
                           .fix = "choose another one, or remove it"});
  }
  const std::vector<NamedTensors> shards = split(tensors, max_shard_bytes);
  std::vector<std::string> files;
  for (size_t i = 0; i < shards.size(); ++i) {
    files.push_back(shards.size() == 1
                        ? kModelFile
                        : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1,
                                      shards.size()));
    write_safetensors(folder + "/" + files.back(),
                      {.tensors = shards[i], .metadata = {{"format", "pt"}}});
  }
  if (files.size() > 1) write_index(folder, files, shards);
  return files.size();
}

bool is_token_table(const std::string& name) {
  return name == "transformer.wte.weight" ||
         name == "model.embed_tokens.weight";
}

bool has_tied_head(const NamedTensors& tensors) {
  const torch::Tensor* head = find_head(tensors);
  const auto table = std::ranges::find_if(
      tensors, [](const auto& item) { return is_token_table(item.first); });
  return head != nullptr && table != tensors.end() &&
         head->scalar_type() == table->second.scalar_type() &&
         head->equal(table->second);
}

void drop_tied_head(const NamedTensors& model, NamedTensors& tensors) {
  if (find_head(model) != nullptr || !has_tied_head(tensors)) return;
  std::erase_if(tensors,
                [](const auto& item) { return item.first == kHeadName; });
}

void refuse_distributed_checkpoint(const std::string& folder) {
  std::error_code ignored;
  const bool has_pickle = fs::is_regular_file(folder + "/.metadata", ignored);
  // A consolidation that failed leaves only the parts, in a folder of this
  // name.
  const std::string parts =
      has_parts_of_tensors(folder + "/sharded") ? folder + "/sharded" : folder;
  if (!has_pickle && !has_parts_of_tensors(parts)) return;
  throw CheckpointError(
      {.code = ErrorCode::kMalformedData,
       .what = folder + " is a checkpoint of torch.distributed.checkpoint",
       .expected =
           fmt::format("whole tensors, in {} or {}", kModelFile, kIndex),
       .got = has_pickle ? "pickled metadata (.metadata)"
                         : "parts of tensors (shard-*.safetensors)",
       .fix = fmt::format(
           "convert it, in Python: import torch, torch.distributed.checkpoint "
           "as dcp; from safetensors.torch import save_file; reader = "
           "dcp.{}('{}'); state = {{k: torch.empty(m.size, "
           "dtype=m.properties.dtype) for k, m in "
           "reader.read_metadata().state_dict_metadata.items() if hasattr(m, "
           "'size')}}; dcp.load(state, storage_reader=reader); "
           "save_file(state, '{}/{}')",
           has_pickle ? "FileSystemReader" : "HuggingFaceStorageReader",
           has_pickle ? folder : parts, folder, kModelFile)});
}

}  // namespace lockstep
