#pragma once

#include <cstdint>
#include <cstring>

#include <c10/util/BFloat16.h>

/// Loops over 16 floats at a time. The compiler makes one instruction of 16
/// lanes from them, or two of 8, or four of 4. The lanes and the order of all
/// sums are the same on all processors, and so are the bits. LibTorch's
/// at::vec::Vectorized has as many lanes as the processor.

// All functions that take lanes are inlined, so no call depends on how lanes
// are passed.
#pragma GCC diagnostic ignored "-Wpsabi"

// These functions are inlined into a function for a kind of processor. A
// function that is not would have instructions for any processor.
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

namespace lockstep::simd {

constexpr int64_t kLanes = 16;

/// 16 floats. A struct, because passing a bare vector to a function depends on
/// the instructions of the caller.
struct Lanes {
  using Floats = float __attribute__((vector_size(64)));
  using Bits = uint32_t __attribute__((vector_size(64)));
  using Halves = uint16_t __attribute__((vector_size(32)));
  Floats v;
};

/// The bits of 16 values of bfloat16.
struct NarrowLanes {
  Lanes::Halves v;
};

LOCKSTEP_INLINE Lanes all(float value) { return {value - Lanes::Floats{}}; }
LOCKSTEP_INLINE Lanes operator+(Lanes a, Lanes b) { return {a.v + b.v}; }
LOCKSTEP_INLINE Lanes operator-(Lanes a, Lanes b) { return {a.v - b.v}; }
LOCKSTEP_INLINE Lanes operator*(Lanes a, Lanes b) { return {a.v * b.v}; }
LOCKSTEP_INLINE Lanes operator/(Lanes a, Lanes b) { return {a.v / b.v}; }
LOCKSTEP_INLINE Lanes operator+(Lanes a, float b) { return {a.v + b}; }
LOCKSTEP_INLINE Lanes operator-(Lanes a, float b) { return {a.v - b}; }
LOCKSTEP_INLINE Lanes operator*(Lanes a, float b) { return {a.v * b}; }
LOCKSTEP_INLINE Lanes operator*(float a, Lanes b) { return {a * b.v}; }

/// Returns the smaller or the larger, or `a` if one is NaN.
LOCKSTEP_INLINE Lanes least(Lanes a, float b) {
  return {a.v > b ? all(b).v : a.v};
}
LOCKSTEP_INLINE Lanes most(Lanes a, float b) {
  return {a.v < b ? all(b).v : a.v};
}
LOCKSTEP_INLINE Lanes most(Lanes a, Lanes b) { return {a.v < b.v ? b.v : a.v}; }

/// Returns `lanes` with `other` from lane `count` on.
LOCKSTEP_INLINE Lanes first_lanes(Lanes lanes, int64_t count, float other) {
  constexpr Lanes::Floats kIndex = {0, 1, 2,  3,  4,  5,  6,  7,
                                    8, 9, 10, 11, 12, 13, 14, 15};
  return {kIndex < static_cast<float>(count) ? lanes.v : all(other).v};
}

LOCKSTEP_INLINE float to_float(float value) { return value; }
LOCKSTEP_INLINE float to_float(c10::BFloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.x) << 16;
  float number;
  std::memcpy(&number, &bits, sizeof(number));
  return number;
}

LOCKSTEP_INLINE Lanes load(const float* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}
LOCKSTEP_INLINE Lanes load(const c10::BFloat16* from) {
  Lanes::Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Lanes::Bits bits = __builtin_convertvector(halves, Lanes::Bits) << 16;
  return {reinterpret_cast<Lanes::Floats>(bits)};
}

LOCKSTEP_INLINE void store(Lanes lanes, float* to) {
  std::memcpy(to, &lanes, sizeof(lanes));
}
/// Returns the bits of the nearest values of bfloat16, ties to even.
LOCKSTEP_INLINE NarrowLanes narrowed(Lanes lanes) {
  const auto bits = reinterpret_cast<Lanes::Bits>(lanes.v);
  Lanes::Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // For a NaN, the sum could be an infinity.
  const auto is_nan = reinterpret_cast<Lanes::Bits>(lanes.v != lanes.v);
  rounded = (rounded & ~is_nan) | (0x7fc0 & is_nan);
  return {__builtin_convertvector(rounded, Lanes::Halves)};
}
LOCKSTEP_INLINE void store(Lanes lanes, c10::BFloat16* to) {
  const NarrowLanes narrow = narrowed(lanes);
  std::memcpy(to, &narrow, sizeof(narrow));
}

/// Load and store the first `count` lanes, at most 16. The others are 0.
template <class T>
LOCKSTEP_INLINE Lanes load(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T part[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) part[i] = from[i];
  return load(part);
}
template <class T>
LOCKSTEP_INLINE void store(Lanes lanes, T* to, int64_t count) {
  if (count >= kLanes) {
    store(lanes, to);
    return;
  }
  T part[kLanes];
  store(lanes, part);
  for (int64_t i = 0; i < count; ++i) to[i] = part[i];
}

/// Adds lanes that are 8, 4, 2 and 1 apart.
LOCKSTEP_INLINE float sum(Lanes lanes) {
  float part[kLanes];
  store(lanes, part);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) part[i] += part[i + half];
  }
  return part[0];
}
LOCKSTEP_INLINE float largest(Lanes lanes) {
  float part[kLanes];
  store(lanes, part);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t i = 0; i < half; ++i) {
      part[i] = part[i] < part[i + half] ? part[i + half] : part[i];
    }
  }
  return part[0];
}

/// Returns exp(x) for x from -87 to 88, with Cephes' polynomial (Moshier,
/// expf.c).
LOCKSTEP_INLINE Lanes exponential(Lanes x) {
  // Adding this to a small number rounds it to an integer in the low bits.
  constexpr float kRounds = 12582912;
  const Lanes shifted = (x * 1.44269504F) + kRounds;
  const Lanes n = shifted - kRounds;
  const Lanes r = (x - (n * 0.693359375F)) - (n * -2.12194440e-4F);
  Lanes p = all(1.9875691500e-4F);
  p = (p * r) + 1.3981999507e-3F;
  p = (p * r) + 8.3334519073e-3F;
  p = (p * r) + 4.1665795894e-2F;
  p = (p * r) + 1.6666665459e-1F;
  p = (p * r) + 5.0000001201e-1F;
  p = ((p * r * r) + r) + 1;
  const Lanes::Bits two_to_n =
      (reinterpret_cast<Lanes::Bits>(shifted.v) << 23) + 0x3f800000;
  return p * Lanes{reinterpret_cast<Lanes::Floats>(two_to_n)};
}

/// Calls visit(i, n) for each 16 of `count` elements, which begin at i. n is
/// 16, or less at the end.
template <class Visit>
LOCKSTEP_INLINE void for_lanes(int64_t count, Visit visit) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) visit(i, kLanes);
  if (i < count) visit(i, count - i);
}

/// The attributes of a lambda for for_lanes().
#define LOCKSTEP_INLINE_LAMBDA __attribute__((always_inline))

/// Calls Body::run(arguments...), compiled for this processor. `Body::run` and
/// what it calls are LOCKSTEP_INLINE.
#if defined(__x86_64__)

template <class Body, class... Arguments>
[[gnu::target("avx2,fma")]] void run_avx2(Arguments... arguments) {
  Body::run(arguments...);
}
template <class Body, class... Arguments>
[[gnu::target("avx512f,avx512bw,avx512vl,avx512dq")]] void run_avx512(
    Arguments... arguments) {
  Body::run(arguments...);
}

#endif

template <class Body, class... Arguments>
void run_plain(Arguments... arguments) {
  Body::run(arguments...);
}

template <class Body, class... Arguments>
auto best_run() -> void (*)(Arguments...) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq")) {
    return run_avx512<Body, Arguments...>;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return run_avx2<Body, Arguments...>;
  }
#endif
  return run_plain<Body, Arguments...>;
}

template <class Body, class... Arguments>
void run(Arguments... arguments) {
  static const auto best = best_run<Body, Arguments...>();
  best(arguments...);
}

}  // namespace lockstep::simd
