#include "lockstep/device/bfloat16_loops.h"

#include <bit>

namespace lockstep {
namespace {

using c10::BFloat16;

// The following functions are inlined into loops that the compiler vectorizes.
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

LOCKSTEP_INLINE float load(float value) { return value; }
LOCKSTEP_INLINE float load(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.x) << 16);
}

LOCKSTEP_INLINE uint16_t rounded(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // For a NaN, the sum could be an infinity.
  return static_cast<uint16_t>(value != value ? 0x7fc0 : nearest);
}

struct Widen {
  LOCKSTEP_INLINE static bool run(const BFloat16* from, const void*, float* to,
                                  int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i] = load(from[i]);
    return true;
  }
};

struct Add {
  template <class A>
  LOCKSTEP_INLINE static bool run(const A* a, const BFloat16* b, float* sum,
                                  int64_t count) {
    for (int64_t i = 0; i < count; ++i) sum[i] = load(a[i]) + load(b[i]);
    return true;
  }
};

struct Narrow {
  LOCKSTEP_INLINE static bool run(const float* from, const void*, BFloat16* to,
                                  int64_t count) {
    for (int64_t i = 0; i < count; ++i) to[i].x = rounded(from[i]);
    return true;
  }
};

struct IsNarrowed {
  LOCKSTEP_INLINE static bool run(const float* from, const BFloat16* to, void*,
                                  int64_t count) {
    uint32_t differences = 0;
    for (int64_t i = 0; i < count; ++i) {
      differences |= static_cast<uint32_t>(rounded(from[i]) ^ to[i].x);
    }
    return differences == 0;
  }
};

template <class Loop, class A, class B, class Out>
bool plain(const A* a, const B* b, Out* out, int64_t count) {
  return Loop::run(a, b, out, count);
}

#if defined(__x86_64__)

template <class Loop, class A, class B, class Out>
[[gnu::target("avx2")]] bool avx2(const A* a, const B* b, Out* out,
                                  int64_t count) {
  return Loop::run(a, b, out, count);
}
template <class Loop, class A, class B, class Out>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]] bool avx512(
    const A* a, const B* b, Out* out, int64_t count) {
  return Loop::run(a, b, out, count);
}

#endif

/// Runs the version of `Loop` for this processor.
template <class Loop, class A, class B, class Out>
bool run(const A* a, const B* b, Out* out, int64_t count) {
#if defined(__x86_64__)
  static const bool has_avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx512) return avx512<Loop>(a, b, out, count);
  if (has_avx2) return avx2<Loop>(a, b, out, count);
#endif
  return plain<Loop>(a, b, out, count);
}

constexpr const void* kNothing = nullptr;

}  // namespace

void widen(const BFloat16* from, float* to, int64_t count) {
  run<Widen>(from, kNothing, to, count);
}

void add_wide(const BFloat16* a, const BFloat16* b, float* sum, int64_t count) {
  run<Add>(a, b, sum, count);
}

void add_wide(const float* a, const BFloat16* b, float* sum, int64_t count) {
  run<Add>(a, b, sum, count);
}

void narrow(const float* from, BFloat16* to, int64_t count) {
  run<Narrow>(from, kNothing, to, count);
}

bool is_narrowed(const float* from, const BFloat16* to, int64_t count) {
  return run<IsNarrowed>(from, to, static_cast<void*>(nullptr), count);
}

}  // namespace lockstep
