#include "lockstep/checkpoint/state_dict.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/base/strict_json.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/weights.h"
#include "lockstep/comm/shared_memory.h"

namespace lockstep {
namespace {

constexpr std::string_view kWrapperPrefix = "module.";

bool is_wrapped(const NamedTensors& tensors) {
  return !tensors.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const auto& item) {
           return item.first.starts_with(kWrapperPrefix);
         });
}

std::string describe(const torch::Tensor& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.sizes(), ", "));
}

std::string listed(std::string_view what,
                   const std::vector<std::string>& entries) {
  constexpr size_t kShown = 8;
  if (entries.empty()) return "";
  const auto shown = std::min(entries.size(), kShown);
  std::string text =
      fmt::format("; {} {}: {}", entries.size(), what,
                  fmt::join(entries.begin(), entries.begin() + shown, ", "));
  if (shown < entries.size()) {
    text += fmt::format(" and {} more", entries.size() - shown);
  }
  return text;
}

struct Copy {
  torch::Tensor from;
  torch::Tensor to;
};

bool is_real_number(const torch::Tensor& tensor) {
  return tensor.dim() == 0 && !tensor.is_complex() &&
         tensor.scalar_type() != torch::kBool;
}

// Returns why `given` can't be cast to the type of `wanted`; "" if it can. A
// cast between floating types only rounds, which is a matter of precision. Any
// other cast of a tensor gives numbers that the model was not trained with. A
// counter is a single number and may have any type, because LibTorch's
// Module::to(dtype) also casts counters.
std::string mistyped(const torch::Tensor& given, const torch::Tensor& wanted) {
  if (given.scalar_type() == wanted.scalar_type()) return "";
  const std::string types =
      fmt::format("expected {}, got {}", c10::toString(wanted.scalar_type()),
                  c10::toString(given.scalar_type()));
  const bool is_between_floating =
      given.is_floating_point() && wanted.is_floating_point();
  const bool is_counter = is_real_number(given) && is_real_number(wanted);
  if (!is_between_floating && !is_counter) return types;
  const torch::NoGradGuard no_grad;
  const torch::Tensor cast = given.to(wanted.scalar_type());
  if (wanted.is_floating_point()) {
    const torch::Tensor lost = given.isfinite() & cast.isfinite().logical_not();
    if (!lost.any().item<bool>()) return "";
    return types + " and numbers beyond its range";
  }
  return cast.to(given.scalar_type()).equal(given) ? "" : types;
}

// Quotes a name from a file if it could spoil a terminal or fill a log.
std::string in_message(const std::string& name) {
  constexpr size_t kLongest = 200;
  const bool is_plain = name.size() <= kLongest &&
                        std::all_of(name.begin(), name.end(), [](char letter) {
                          return letter >= ' ' && letter <= '~';
                        });
  return is_plain ? name : quote(name);
}

// Returns the names without each "module." that a wrapper adds, sorted.
std::vector<std::string> unwrapped_names(const NamedTensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    std::string rest = "." + name;
    const std::string added = "." + std::string(kWrapperPrefix);
    for (size_t at = rest.find(added); at != std::string::npos;
         at = rest.find(added, at)) {
      rest.erase(at + 1, kWrapperPrefix.size());
    }
    names.push_back(std::move(rest));
  }
  std::sort(names.begin(), names.end());
  return names;
}

size_t length_of_names(const NamedTensors& tensors) {
  size_t length = 0;
  for (const auto& [name, tensor] : tensors) length += name.size();
  return length;
}

// Returns whether the names are the same without each "module.".
bool differ_by_wrapper(const NamedTensors& wanted,
                       const NamedTensors& tensors) {
  return unwrapped_names(wanted) == unwrapped_names(tensors);
}

// Returns how to load `tensors` if differ_by_wrapper().
std::string fix_of_wrapper(const NamedTensors& wanted,
                           const NamedTensors& tensors) {
  const std::string cause =
      "the names differ only by the \"module.\" that a wrapper adds; ";
  return length_of_names(wanted) > length_of_names(tensors)
             ? cause +
                   "load into the wrapped module: "
                   "lockstep::load(*model->module(), path)"
             : cause +
                   "save the wrapped module: "
                   "lockstep::save(*model->module(), path)";
}

// Returns true if `tensor` of `module` has another name in `module` that is in
// `found`. safetensors.torch.save_model() writes such a tensor once.
bool is_tied(const torch::Tensor& tensor, const NamedTensors& module,
             const std::unordered_map<std::string, torch::Tensor>& found) {
  return std::any_of(module.begin(), module.end(), [&](const auto& other) {
    return other.second.is_same(tensor) && found.contains(other.first);
  });
}

// Returns the copies to make, or throws CheckpointError.
std::vector<Copy> match(const NamedTensors& wanted, const NamedTensors& tensors,
                        const std::string& source) {
  const size_t prefix =
      is_wrapped(tensors) && !is_wrapped(wanted) ? kWrapperPrefix.size() : 0;
  std::unordered_map<std::string, torch::Tensor> found;
  std::vector<std::string> missing, unexpected, misshapen, with_wrong_type;
  for (const auto& [name, tensor] : tensors) {
    const std::string bare = name.substr(prefix);
    if (!found.emplace(bare, tensor).second) {
      unexpected.push_back(in_message(bare) + " (given twice)");
    }
  }
  std::vector<Copy> copies;
  const auto given_names = found;
  for (const auto& [name, tensor] : wanted) {
    const auto entry = found.find(name);
    if (entry == found.end()) {
      if (!is_tied(tensor, wanted, given_names)) missing.push_back(name);
      continue;
    }
    const torch::Tensor& given = entry->second;
    if (given.sizes() != tensor.sizes()) {
      misshapen.push_back(fmt::format("{} (expected {}, got {})", name,
                                      describe(tensor), describe(given)));
    } else if (const std::string why = mistyped(given, tensor); !why.empty()) {
      with_wrong_type.push_back(fmt::format("{} ({})", name, why));
    }
    copies.push_back({.from = given, .to = tensor});
    found.erase(entry);
  }
  for (const auto& [name, tensor] : tensors) {
    const std::string bare = name.substr(prefix);
    if (found.contains(bare)) unexpected.push_back(in_message(bare));
  }
  const bool names_differ = !missing.empty() || !unexpected.empty();
  if (names_differ || !misshapen.empty() || !with_wrong_type.empty()) {
    const std::string same_model = "build the model that it was saved from";
    const std::string fix =
        !with_wrong_type.empty()
            ? same_model +
                  "; only floating types are converted, to floating types"
        : names_differ && differ_by_wrapper(wanted, tensors)
            ? fix_of_wrapper(wanted, tensors)
            : same_model;
    throw CheckpointError(
        {.code = ErrorCode::kStateMismatch,
         .what = fmt::format("{} does not fit the model{}{}{}{}",
                             source.empty() ? "the state dict" : source,
                             listed("missing", missing),
                             listed("unexpected", unexpected),
                             listed("misshapen", misshapen),
                             listed("of another type", with_wrong_type)),
         .fix = fix});
  }
  return copies;
}

}  // namespace

NamedTensors state_dict(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) result.emplace_back(item.key(), item.value());
  }
  return result;
}

void check_state_dict(const NamedTensors& module, const NamedTensors& tensors,
                      const std::string& source) {
  match(module, tensors, source);
}

void load_state_dict(torch::nn::Module& module, const NamedTensors& tensors,
                     const std::string& source) {
  load_state_dict(state_dict(module), tensors, source);
}

void load_state_dict(const NamedTensors& module, const NamedTensors& tensors,
                     const std::string& source) {
  const torch::NoGradGuard no_grad;
  for (Copy& copy : match(module, tensors, source)) {
    unshare(copy.to);  // each rank loads into its own memory
    copy.to.copy_(copy.from);
  }
}

std::string parameter_digest(const torch::nn::Module& module) {
  return parameter_digest(state_dict(module));
}

std::string parameter_digest(NamedTensors entries) {
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  Sha256 digest;
  for (const auto& [name, tensor] : entries) {
    digest.add(fmt::format("{}{}{}{}{}{}", name, '\0',
                           safetensors_dtype(tensor.scalar_type()), '\0',
                           fmt::join(tensor.sizes(), ","), '\0'));
    const torch::Tensor bytes = tensor.detach().to(torch::kCPU).contiguous();
    digest.add(std::span(static_cast<const std::byte*>(bytes.data_ptr()),
                         bytes.nbytes()));
  }
  return digest.hex();
}

void save(const torch::nn::Module& module, const std::string& path) {
  write_safetensors(
      path, {.tensors = state_dict(module), .metadata = {{"format", "pt"}}});
}

void load(torch::nn::Module& module, const std::string& path) {
  load_state_dict(module, read_weights(path), path);
}

}  // namespace lockstep
