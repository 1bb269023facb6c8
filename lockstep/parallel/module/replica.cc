#include "lockstep/parallel/module/replica.h"

#include <algorithm>

#include <ATen/core/LegacyTypeDispatch.h>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/parallel/module/module_options.h"

namespace lockstep {

using torch::Tensor;

namespace {

void check_alike(const char* kind, const ModuleHandle::Named& copy,
                 const ModuleHandle::Named& original) {
  if (copy.size() != original.size()) {
    throw InvalidArgument(
        "replicate",
        {.code = ErrorCode::kNotCloneable,
         .what = fmt::format("a replica has another number of {}s", kind),
         .expected = fmt::format("{}", original.size()),
         .got = fmt::format("{}", copy.size()),
         .fix = "register everything in reset(), or let the factory build "
                "the same module as the original"});
  }
  for (size_t i = 0; i < copy.size(); ++i) {
    const auto& [name, tensor] = copy[i];
    const Tensor& twin = original[i].second;
    if (name == original[i].first && tensor.sizes() == twin.sizes()) continue;
    throw InvalidArgument(
        "replicate",
        {.code = ErrorCode::kNotCloneable,
         .what =
             fmt::format("{} {} of a replica is not the original's", kind, i),
         .expected = fmt::format("'{}' of shape {}", original[i].first,
                                 c10::str(twin.sizes())),
         .got = fmt::format("'{}' of shape {}", name, c10::str(tensor.sizes())),
         .fix = "let the factory build the same module as the original"});
  }
}

void check_same_parts(const ModuleHandle& copy, const ModuleHandle& original) {
  const auto parts = copy.parts();
  const auto expected = original.parts();
  const auto describe = [](const std::vector<ModuleHandle::Part>& all,
                           size_t i) -> std::string {
    if (i >= all.size()) return "no more submodules";
    const auto& [name, text] = all[i];
    return name.empty() ? text : fmt::format("'{}': {}", name, text);
  };
  for (size_t i = 0; i < std::max(parts.size(), expected.size()); ++i) {
    if (i < parts.size() && i < expected.size() && parts[i] == expected[i]) {
      continue;
    }
    throw InvalidArgument(
        "replicate",
        {.code = ErrorCode::kNotCloneable,
         .what = "a replica is another network than the original",
         .expected = describe(expected, i),
         .got = describe(parts, i),
         .fix = "let clone() (reset(), for a Cloneable) or the factory build "
                "what the original is now"});
  }
}

/// Shares the version counter, so that an in-place change of the original
/// between forward and backward is detected as without replicas, even if the
/// replica has its own memory.
void share_version(Tensor& copy, const Tensor& original) {
  if (copy.is_inference() || original.is_inference()) return;
  torch::autograd::impl::set_version_counter(
      copy, torch::autograd::impl::version_counter(original));
}

bool can_share(const Tensor& original, const Device& device) {
  return original.device() == torch_device(device) ||
         (device.is_cpu() && original.is_cpu());
}

}  // namespace

Replica::Replica(ModuleHandle module, const ModuleHandle& original,
                 const Device& device, Storage parameters, Storage buffers)
    : module_(std::move(module)),
      device_(device),
      parameters_(parameters),
      buffers_(buffers) {
  check_alike("parameter", module_.parameters, original.parameters);
  check_alike("buffer", module_.buffers, original.buffers);
  if (module_.module && original.module) {
    option_followers_ = follow_options(*original.module, *module_.module);
  }
  refresh(original);
  check_same_parts(module_, original);
}

void Replica::place(Tensor& copy, const Tensor& original,
                    Storage storage) const {
  const auto is_like = [&] {
    return copy.sizes() == original.sizes() &&
           copy.strides() == original.strides() &&
           copy.scalar_type() == original.scalar_type();
  };
  if (storage == Storage::kShared && can_share(original, device_)) {
    if (copy.is_alias_of(original) && is_like() &&
        copy.storage_offset() == original.storage_offset()) {
      return;
    }
    copy.set_data(original.detach());
    share_version(copy, original);
    return;
  }
  if (copy.device() == torch_device(device_) && is_like() &&
      !copy.is_alias_of(original)) {
    return;
  }
  copy.set_data(torch::empty_like(original.detach(), torch_device(device_)));
}

void Replica::refresh(const ModuleHandle& original,
                      const ParameterCasts& casts) {
  // Tensors kept here outlive an evaluation under c10::InferenceMode.
  const c10::InferenceMode normal(false);
  torch::NoGradGuard no_grad;
  for (size_t i = 0; i < module_.parameters.size(); ++i) {
    Tensor& copy = module_.parameters[i].second;
    const Tensor& from = original.parameters[i].second;
    const Tensor& cast = casts.of(i);
    place(copy, cast.defined() ? cast : from, parameters_);
    if (copy.requires_grad() != from.requires_grad()) {
      copy.set_requires_grad(from.requires_grad());
    }
    if (cast.defined()) {
      share_version(copy, from);
      continue;
    }
    if (copy.is_alias_of(from)) continue;
    share_version(copy, from);
    // Copies below autograd, which leaves the version alone. It is the
    // original's, and it has already moved if a graph that was made before saw
    // other values.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    copy_over({place_of(from), device_}, copy, from);
  }
  for (size_t i = 0; i < module_.buffers.size(); ++i) {
    place(module_.buffers[i].second, original.buffers[i].second, buffers_);
  }
  for (const auto& follow : option_followers_) follow();
  module_.set_modes(original.modes());
}

void Replica::refresh_for(int64_t forward, const ModuleHandle& original,
                          const ParameterCasts& casts) {
  if (refreshed_for_ == forward) return;
  refresh(original, casts);
  refreshed_for_ = forward;
}

void Replica::set_buffers(const std::vector<Tensor>& source) {
  torch::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (size_t i = 0; i < source.size(); ++i) {
    copy_over({place_of(source[i]), device_}, module_.buffers[i].second,
              source[i]);
  }
}

std::vector<OwnedGradient> Replica::take_gradients(
    const std::vector<size_t>& unique, size_t count) {
  torch::NoGradGuard no_grad;
  // If two gradients share memory, the first is copied and dropped. The second
  // may then keep the memory.
  std::vector<OwnedGradient> gradients(count);
  for (size_t i = 0; i < module_.parameters.size(); ++i) {
    const Tensor& parameter = module_.parameters[i].second;
    Tensor gradient = std::move(parameter.mutable_grad());
    parameter.mutable_grad().reset();
    OwnedGradient& sum = gradients[unique[i]];
    // The original has this parameter once, and the replica has it twice.
    if (sum.defined() && gradient.defined()) {
      gradient = sum.tensor() + gradient;
    }
    if (!gradient.defined()) continue;
    sum = OwnedGradient::take(std::move(gradient), parameter);
  }
  return gradients;
}

void Replica::drop_gradients() {
  for (const auto& [name, parameter] : module_.parameters) {
    parameter.mutable_grad().reset();
  }
}

}  // namespace lockstep
