#include "lockstep/device/links/device_copy.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/special_links.h"
#include "lockstep/device/tensor_device.h"

namespace lockstep {

using torch::Tensor;

namespace {

struct Paths {
  std::mutex mutex;
  std::map<Link, CopyPath> by_link;
  std::atomic<bool> has_staged{false};
};

Paths& paths() {
  static Paths process_paths;
  return process_paths;
}

struct Hook {
  std::mutex mutex;
  std::shared_ptr<const CopyHook> hook;
  std::atomic<bool> is_set{false};
};

Hook& hook_of_process() {
  static Hook hook;
  return hook;
}

// Returns the hook if it applies to `link`, or nullptr.
std::shared_ptr<const CopyHook> hook_for(const Link& link) {
  if (!has_copy_hook()) return nullptr;
  const std::lock_guard lock(hook_of_process().mutex);
  const auto& hook = hook_of_process().hook;
  return hook != nullptr && hook->applies_to(link) ? hook : nullptr;
}

// Copies to new memory through the hook, as a copy between GPUs would.
Tensor copied(const Tensor& tensor, const Link& link) {
  Tensor copy = tensor.to(torch_device(link.to), tensor.scalar_type(),
                          /*non_blocking=*/false, /*copy=*/true);
  const torch::NoGradGuard no_grad;
  Tensor values = copy.detach();
  const Tensor sent = values.clone();
  values.zero_();
  copy_directly(link, values, [&] { values.copy_(sent); });
  return copy;
}

}  // namespace

void set_copy_path(const Link& link, CopyPath path) {
  const std::lock_guard lock(paths().mutex);
  paths().by_link[link] = path;
  if (path == CopyPath::kStaged) paths().has_staged = true;
}

std::optional<CopyPath> chosen_path(const Link& link) {
  const std::lock_guard lock(paths().mutex);
  const auto found = paths().by_link.find(link);
  if (found == paths().by_link.end()) return std::nullopt;
  return found->second;
}

void forget_copy_paths() {
  const std::lock_guard lock(paths().mutex);
  paths().by_link.clear();
  paths().has_staged = false;
}

bool has_special_links() { return paths().has_staged || has_copy_hook(); }

Device place_of(const Tensor& tensor) {
  return device_of(tensor).value_or(Device{});
}

Tensor to_device(const Tensor& tensor, const Device& device) {
  accelerator::record_use(tensor);
  if (!has_special_links() || !tensor.defined()) {
    return tensor.to(torch_device(device), /*non_blocking=*/false);
  }
  const Link link{place_of(tensor), device};
  if (chosen_path(link) == CopyPath::kStaged) {
    return tensor.to(torch::kCPU).to(torch_device(device));
  }
  if (hook_for(link) != nullptr) return copied(tensor, link);
  return tensor.to(torch_device(device), /*non_blocking=*/false);
}

void copy_over(const Link& link, Tensor& destination, const Tensor& source) {
  if (!has_special_links()) {
    destination.copy_(source);
  } else if (chosen_path(link) == CopyPath::kStaged) {
    destination.copy_(source.to(torch::kCPU));
  } else {
    copy_directly(link, destination, [&] { destination.copy_(source); });
  }
}

void set_copy_hook(std::optional<CopyHook> hook) {
  {
    Hook& kept = hook_of_process();
    const std::lock_guard lock(kept.mutex);
    kept.is_set = hook.has_value();
    kept.hook =
        hook ? std::make_shared<const CopyHook>(*std::move(hook)) : nullptr;
  }
  forget_copy_paths();
}

bool has_copy_hook() { return hook_of_process().is_set; }

void copy_directly(const Link& link, Tensor& destination,
                   const std::function<void()>& libtorch_copy) {
  if (const auto hook = hook_for(link)) {
    hook->copy(link, destination, libtorch_copy);
  } else {
    libtorch_copy();
  }
}

}  // namespace lockstep
