// Feeds a Hugging Face folder to load_hugging_face(). The bytes up to the first
// zero are config.json, those up to the second zero are the index (if not
// empty), and the rest is a file of weights: part.safetensors if there is an
// index, or else model.safetensors. An accepted model has the sizes in the
// config, and is the same after it is saved in several files and loaded again.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/lm/models/hugging_face.h"
#include "tests/fuzz/input.h"

namespace lockstep::fuzz {
namespace {

void write(const Folder& folder, const std::string& name,
           std::string_view bytes) {
  std::ofstream(folder.path() + "/" + name, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::string_view take_part(std::string_view& bytes) {
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  const std::string_view part = bytes.substr(0, end);
  bytes.remove_prefix(std::min(end + 1, bytes.size()));
  return part;
}

void check_same(const models::LanguageModel& a,
                const models::LanguageModel& b) {
  const NamedTensors first = state_dict(a);
  const NamedTensors second = state_dict(b);
  require(first.size() == second.size(), "parameters were lost");
  for (size_t i = 0; i < first.size(); ++i) {
    require(first[i].first == second[i].first, "a name changed");
    // Compares bytes, so a NaN equals itself.
    require(first[i].second.nbytes() == second[i].second.nbytes() &&
                std::memcmp(first[i].second.const_data_ptr(),
                            second[i].second.const_data_ptr(),
                            first[i].second.nbytes()) == 0,
            "a parameter changed");
  }
}

}  // namespace
}  // namespace lockstep::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lockstep;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const fuzz::Folder folder;
  fuzz::write(folder, "config.json", fuzz::take_part(bytes));
  const std::string_view index = fuzz::take_part(bytes);
  if (!index.empty()) {
    fuzz::write(folder, "model.safetensors.index.json", index);
  }
  fuzz::write(folder, index.empty() ? "model.safetensors" : "part.safetensors",
              bytes);
  try {
    const auto model = load_hugging_face(folder.path());
    int64_t elements = 0;
    for (const auto& parameter : model->parameters()) {
      elements += parameter.numel();
    }
    fuzz::require(elements == models::count_parameters(model->spec()),
                  "the model has other sizes than its config");
    const fuzz::Folder again;
    save_hugging_face(again.path(), *model, 100);
    fuzz::check_same(*load_hugging_face(again.path()), *model);
  } catch (const Error& error) {
    fuzz::require_plain_message(error);
  }
  return 0;
}
