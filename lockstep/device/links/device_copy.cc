#include "lockstep/device/links/device_copy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>

#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/link_faults.h"
#include "lockstep/device/links/special_links.h"
#include "lockstep/device/tensor_device.h"

namespace lockstep {

using torch::Tensor;

namespace {

struct Paths {
  std::mutex mutex;
  std::map<Link, CopyPath> of_links;
  std::atomic<bool> has_staged{false};
};

Paths& paths() {
  static Paths of_process;
  return of_process;
}

// Reverses the bytes of each word in one cache line of every 64 KiB. A model's
// numbers become huge ones or NaN.
void corrupt(Tensor& destination) {
  constexpr size_t kEvery = size_t{64} << 10;
  constexpr size_t kLine = 64, kWord = 4;
  Tensor host = destination.detach().to(torch::kCPU).contiguous();
  auto* bytes = static_cast<std::byte*>(host.mutable_data_ptr());
  const size_t size = host.nbytes();
  for (size_t line = 0; line < size; line += kEvery) {
    const size_t end = std::min(line + kLine, size);
    for (size_t word = line; word + kWord <= end; word += kWord) {
      std::reverse(bytes + word, bytes + word + kWord);
    }
  }
  destination.copy_(host);
}

// Copies over a link with a fault to new memory, as a copy between GPUs would.
Tensor copied(const Tensor& tensor, const Link& link) {
  Tensor copy = tensor.to(torch_device(link.to), tensor.scalar_type(),
                          /*non_blocking=*/false, /*copy=*/true);
  const torch::NoGradGuard no_grad;
  Tensor values = copy.detach();
  const Tensor sent = values.clone();
  values.zero_();
  with_faults(link, values, [&] { values.copy_(sent); });
  return copy;
}

bool has_fault(const Link& link) {
  const auto faults = link_faults();
  return std::any_of(
      faults->begin(), faults->end(),
      [&](const LinkFault& fault) { return fault.link == link; });
}

}  // namespace

void set_copy_path(const Link& link, CopyPath path) {
  const std::lock_guard lock(paths().mutex);
  paths().of_links[link] = path;
  if (path == CopyPath::kStaged) paths().has_staged = true;
}

std::optional<CopyPath> chosen_path(const Link& link) {
  const std::lock_guard lock(paths().mutex);
  const auto found = paths().of_links.find(link);
  if (found == paths().of_links.end()) return std::nullopt;
  return found->second;
}

void forget_copy_paths() {
  const std::lock_guard lock(paths().mutex);
  paths().of_links.clear();
  paths().has_staged = false;
}

bool has_special_links() { return paths().has_staged || has_link_faults(); }

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
  if (has_fault(link)) return copied(tensor, link);
  return tensor.to(torch_device(device), /*non_blocking=*/false);
}

void copy_over(const Link& link, Tensor& destination, const Tensor& source) {
  if (!has_special_links()) {
    destination.copy_(source);
  } else if (chosen_path(link) == CopyPath::kStaged) {
    destination.copy_(source.to(torch::kCPU));
  } else {
    with_faults(link, destination, [&] { destination.copy_(source); });
  }
}

void with_faults(const Link& link, Tensor& destination,
                 const std::function<void()>& copy) {
  bool is_dropped = false;
  bool is_corrupt = false;
  const auto faults = link_faults();
  for (const LinkFault& fault : *faults) {
    const auto bytes = static_cast<int64_t>(destination.nbytes());
    if (fault.link != link || bytes < fault.least_bytes) continue;
    switch (fault.kind) {
      case LinkFault::Kind::kCorrupt:
        is_corrupt = true;
        break;
      case LinkFault::Kind::kDrop:
        is_dropped = true;
        break;
      case LinkFault::Kind::kDelay:
        std::this_thread::sleep_for(
            std::chrono::duration<double>(fault.delay_s));
        break;
    }
  }
  if (!is_dropped) copy();
  if (is_corrupt) corrupt(destination);
}

}  // namespace lockstep
