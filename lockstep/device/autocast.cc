#include "lockstep/device/autocast.h"

#include <algorithm>
#include <string>

#include <ATen/autocast_mode.h>

#include "lockstep/base/checksum.h"
#include "lockstep/base/env.h"
#include "lockstep/base/log.h"
#include "lockstep/device/tensor_checksum.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace lockstep {
namespace {

#if defined(__x86_64__)

/// Returns true if the processor has AMX with bfloat16, and the kernel lets
/// programs use it.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBFloat16 = 1U << 22;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr int kGetSupported = 0x1021;  // ARCH_GET_XCOMP_SUPP
  constexpr uint64_t kTiles = uint64_t{1} << 18;
  uint64_t supported = 0;
  return (d & kBFloat16) != 0 &&
         syscall(SYS_arch_prctl, kGetSupported, &supported) == 0 &&
         (supported & kTiles) != 0;
}

/// Returns false if the user keeps oneDNN from using AMX or AVX-512's
/// instructions for bfloat16, of which `name` is a part of the names.
bool may_use(const char* name) {
  const auto isa = env("ONEDNN_MAX_CPU_ISA");
  return !isa || *isa == "ALL" || *isa == "DEFAULT" ||
         isa->find(name) != std::string::npos;
}

/// Returns true if LibTorch's products of bfloat16 are faster than those of
/// float32. AVX-512's instructions are, except on processors that have AMX
/// instead.
bool has_fast_bfloat16() {
  if (has_amx()) return may_use("AMX");
  return __builtin_cpu_supports("avx512bf16") && may_use("BF16");
}

#endif

void warn_of_slow_bfloat16() {
  // Once for all ranks.
  if (env("RANK").value_or("0") != "0") return;
  warn_once("slow-bfloat16", "autocast",
            "this CPU has no AMX or AVX512_BF16 (or ONEDNN_MAX_CPU_ISA hides "
            "them), so bfloat16 saves no time: the models of "
            "Lockstep take about as long as in float32, and LibTorch's layers "
            "up to 20 times as long; leave autocast off to train faster");
}

}  // namespace

AutocastScope::AutocastScope(c10::DeviceType device,
                             std::optional<c10::ScalarType> type)
    : device_(device),
      was_on_(at::autocast::is_autocast_enabled(device)),
      outer_type_(at::autocast::get_autocast_dtype(device)) {
  at::autocast::set_autocast_enabled(device_, type.has_value());
  if (type) at::autocast::set_autocast_dtype(device_, *type);
  if (device == c10::DeviceType::CPU && type == c10::ScalarType::BFloat16 &&
      has_slow_bfloat16()) {
    warn_of_slow_bfloat16();
  }
}

AutocastScope::~AutocastScope() {
  at::autocast::set_autocast_enabled(device_, was_on_);
  at::autocast::set_autocast_dtype(device_, outer_type_);
  drop_cast_weights();
}

bool has_autocast() {
  const auto& types = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;
  return std::any_of(types.begin(), types.end(),
                     &at::autocast::is_autocast_enabled);
}

std::optional<c10::ScalarType> autocast_type(c10::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

bool has_slow_bfloat16() {
#if defined(__x86_64__)
  static const bool is_slow = !has_fast_bfloat16();
  return is_slow;
#else
  return false;
#endif
}

at::Tensor cast_for_products(const at::Tensor& x) {
  const auto device = x.device().type();
  const auto type = autocast_type(device);
  return type ? at::autocast::cached_cast(*type, x, device) : x;
}

void drop_cast_weights() { at::autocast::clear_cache(); }

void CastWatch::follow(const std::vector<at::Tensor>& weights) {
  if (!has_autocast()) return seen_.reset();
  Fnv1a hash;
  bool is_hidden = false;
  for (const at::Tensor& weight : weights) {
    if (weight.layout() != at::kStrided) continue;
    const bool has_version = !weight.is_inference();
    hash.add_unit(has_version ? static_cast<uint64_t>(weight._version()) : 0);
    hash.add_unit(reinterpret_cast<uintptr_t>(weight.const_data_ptr()));
    // torch::optim::SGD writes without a new version.
    if (weight.is_cpu() && weight.is_non_overlapping_and_dense()) {
      hash.add_unit(sample_of(weight));
    } else if (at::GradMode::is_enabled()) {
      is_hidden = true;
    }
  }
  if (is_hidden || (seen_ && *seen_ != hash.value())) drop_cast_weights();
  seen_ = hash.value();
}

}  // namespace lockstep
