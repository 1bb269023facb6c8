#pragma once

#include "lockstep/device/simd.h"

/// Products of matrices that are too small for a library: of one head of an
/// attention.

namespace lockstep::simd {

/// A matrix whose elements are at data[i * row + j * column].
struct Matrix {
  const float* data;
  int64_t row;
  int64_t column = 1;
};

/// Computes a tile of c = a b, or adds it to c.
template <int kHeight, int kVectors>
LOCKSTEP_INLINE void multiply_tile(Matrix a, const float* b, int64_t b_row,
                                   float* c, int64_t c_row, int64_t inner,
                                   bool adds) {
#if defined(__clang__)
  // With the multiply-add that AVX2 and AVX-512 have, which gives the same bits
  // on both.
#pragma clang fp contract(fast)
#endif
  Lanes sums[kHeight][kVectors];
  for (int i = 0; i < kHeight; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = adds ? load(c + (i * c_row) + (j * kLanes)) : all(0);
    }
  }
  for (int64_t k = 0; k < inner; ++k) {
    Lanes right[kVectors];
    for (int j = 0; j < kVectors; ++j) {
      right[j] = load(b + (k * b_row) + (j * kLanes));
    }
    const float* left = a.data + (k * a.column);
    for (int i = 0; i < kHeight; ++i) {
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j].v += left[i * a.row] * right[j].v;
      }
    }
  }
  for (int i = 0; i < kHeight; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      store(sums[i][j], c + (i * c_row) + (j * kLanes));
    }
  }
}

/// Computes columns of c = a b, or adds them to c: those of `kVectors` vectors.
template <int kVectors>
LOCKSTEP_INLINE void multiply_columns(Matrix a, const float* b, int64_t b_row,
                                      float* c, int64_t c_row, int64_t height,
                                      int64_t inner, bool adds) {
  int64_t i = 0;
  for (; i + 4 <= height; i += 4) {
    multiply_tile<4, kVectors>({a.data + (i * a.row), a.row, a.column}, b,
                               b_row, c + (i * c_row), c_row, inner, adds);
  }
  for (; i < height; ++i) {
    multiply_tile<1, kVectors>({a.data + (i * a.row), a.row, a.column}, b,
                               b_row, c + (i * c_row), c_row, inner, adds);
  }
}

/// Computes c = a b, or adds it to c: (height, inner) times (inner, width).
/// `width` is a multiple of 16. Each element is a sum in the order of `inner`.
LOCKSTEP_INLINE void multiply(Matrix a, const float* b, int64_t b_row, float* c,
                              int64_t c_row, int64_t height, int64_t inner,
                              int64_t width, bool adds) {
  int64_t j = 0;
  for (; j + (2 * kLanes) <= width; j += 2 * kLanes) {
    multiply_columns<2>(a, b + j, b_row, c + j, c_row, height, inner, adds);
  }
  if (j < width) {
    multiply_columns<1>(a, b + j, b_row, c + j, c_row, height, inner, adds);
  }
}

}  // namespace lockstep::simd
