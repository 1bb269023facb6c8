#include "lockstep/launch/options/nproc.h"

#include <charconv>
#include <dlfcn.h>
#include <optional>

#include <fmt/format.h>

#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"

namespace lockstep::launch {
namespace {

// More than any machine can hold: a larger number is a typing error.
constexpr int kMost = 4096;

std::optional<int> count(const std::string& text) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stop != end || value < 1 || value > kMost) {
    return std::nullopt;
  }
  return value;
}

int core_count() { return static_cast<int>(allowed_cores().size()); }

// How many GPUs CUDA_VISIBLE_DEVICES leaves. The CUDA driver itself is asked,
// because the launcher starts without LibTorch. The driver stays loaded.
int gpu_count() {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return 0;
  using Init = int (*)(unsigned int);
  using Count = int (*)(int*);
  const auto init = reinterpret_cast<Init>(::dlsym(driver, "cuInit"));
  const auto get_count =
      reinterpret_cast<Count>(::dlsym(driver, "cuDeviceGetCount"));
  int gpus = 0;
  if (init == nullptr || get_count == nullptr || init(0) != 0 ||
      get_count(&gpus) != 0) {
    return 0;
  }
  return gpus;
}

}  // namespace

int parse_nproc(const std::string& text) {
  if (const auto number = count(text)) return *number;
  if (text == "cpu") return core_count();
  const int gpus = gpu_count();
  if (text == "auto") return gpus > 0 ? gpus : core_count();
  if (text == "gpu") {
    if (gpus > 0) return gpus;
    throw LaunchError({.code = ErrorCode::kNoSuchDevice,
                       .what = "--nproc-per-node gpu, and there is no GPU",
                       .expected = "a CUDA device",
                       .got = "none",
                       .fix = "use --nproc-per-node cpu or a number"});
  }
  throw InvalidArgument("launch",
                        {.code = ErrorCode::kBadOption,
                         .what = "can't use --nproc-per-node",
                         .expected = fmt::format(
                             "a number from 1 to {}, auto, cpu or gpu", kMost),
                         .got = "'" + text + "'"});
}

NodeCount parse_nnodes(const std::string& text) {
  const auto colon = text.find(':');
  const auto least = count(text.substr(0, colon));
  const auto most =
      colon == std::string::npos ? least : count(text.substr(colon + 1));
  if (!least || !most || *least > *most) {
    throw InvalidArgument(
        "launch",
        {.code = ErrorCode::kBadOption,
         .what = "can't use --nnodes",
         .expected = fmt::format("a number from 1 to {}, or MIN:MAX", kMost),
         .got = "'" + text + "'"});
  }
  return {.least = *least, .most = *most};
}

}  // namespace lockstep::launch
