#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "lockstep/shm/collectives.h"

namespace lockstep::shm {

/// The data that the tests of collectives send.
using Numbers = std::vector<uint32_t>;

inline std::span<std::byte> bytes_of(Numbers& numbers) {
  return std::as_writable_bytes(std::span(numbers));
}
inline std::span<const std::byte> bytes_of(const Numbers& numbers) {
  return std::as_bytes(std::span(numbers));
}

/// Returns a hash, which is neither commutative nor associative, so its order
/// can be tested.
inline transport::Reduction chained() {
  return {.element_bytes = sizeof(uint32_t),
          .combine = [](std::span<const std::byte* const> inputs,
                        std::byte* output, size_t elements) {
            for (size_t i = 0; i < elements; ++i) {
              uint32_t sum = 0;
              for (const std::byte* input : inputs) {
                uint32_t value = 0;
                std::memcpy(&value, input + i * sizeof(value), sizeof(value));
                sum = sum * 31 + value;
              }
              std::memcpy(output + i * sizeof(sum), &sum, sizeof(sum));
            }
          }};
}

/// Returns the numbers that `rank` contributes. `salt` distinguishes
/// collectives.
inline Numbers numbers_of(int rank, size_t count, uint32_t salt = 0) {
  Numbers numbers(count);
  std::iota(numbers.begin(), numbers.end(),
            static_cast<uint32_t>(rank) * 1'000'003 + salt * 77);
  return numbers;
}

inline Numbers reduced(int ranks, size_t count, uint32_t salt = 0) {
  Numbers result(count, 0);
  for (int rank = 0; rank < ranks; ++rank) {
    const Numbers rank_numbers = numbers_of(rank, count, salt);
    for (size_t i = 0; i < count; ++i)
      result[i] = result[i] * 31 + rank_numbers[i];
  }
  return result;
}

}  // namespace lockstep::shm
