#include "lockstep/device/bfloat16_loops.h"

#include <cstring>

#include "lockstep/device/simd.h"

namespace lockstep {
namespace {

using c10::BFloat16;
using simd::kLanes;

struct Convert {
  template <class From, class To>
  LOCKSTEP_INLINE static void run(const From* from, To* to, int64_t count) {
    simd::for_lanes(count, [=](int64_t i, int64_t n) LOCKSTEP_INLINE_LAMBDA {
      simd::store(simd::load(from + i, n), to + i, n);
    });
  }
};

struct Add {
  template <class A>
  LOCKSTEP_INLINE static void run(const A* a, const BFloat16* b, float* sum,
                                  int64_t count) {
    simd::for_lanes(count, [=](int64_t i, int64_t n) LOCKSTEP_INLINE_LAMBDA {
      simd::store(simd::load(a + i, n) + simd::load(b + i, n), sum + i, n);
    });
  }
};

struct IsNarrowed {
  LOCKSTEP_INLINE static void run(const float* from, const BFloat16* to,
                                  bool* result, int64_t count) {
    simd::Lanes::Halves differences = {};
    simd::for_lanes(count, [&](int64_t i, int64_t n) LOCKSTEP_INLINE_LAMBDA {
      simd::NarrowLanes expected = {};
      std::memcpy(&expected, to + i, static_cast<size_t>(n) * sizeof(*to));
      differences |= simd::narrowed(simd::load(from + i, n)).v ^ expected.v;
    });
    *result = true;
    for (int64_t i = 0; i < kLanes; ++i) {
      if (differences[i] != 0) *result = false;
    }
  }
};

}  // namespace

void widen(const BFloat16* from, float* to, int64_t count) {
  simd::run<Convert>(from, to, count);
}

void add_wide(const BFloat16* a, const BFloat16* b, float* sum, int64_t count) {
  simd::run<Add>(a, b, sum, count);
}

void add_wide(const float* a, const BFloat16* b, float* sum, int64_t count) {
  simd::run<Add>(a, b, sum, count);
}

void narrow(const float* from, BFloat16* to, int64_t count) {
  simd::run<Convert>(from, to, count);
}

bool is_narrowed(const float* from, const BFloat16* to, int64_t count) {
  bool result = false;
  simd::run<IsNarrowed>(from, to, &result, count);
  return result;
}

}  // namespace lockstep
