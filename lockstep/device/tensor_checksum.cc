#include "lockstep/device/tensor_checksum.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>

#include "lockstep/device/random.h"

namespace lockstep {

void add_elements(Checksum& sum, const torch::Tensor& tensor) {
  if (!tensor.defined()) {
    sum.add("undefined");
    return;
  }
  torch::Tensor bytes = tensor.detach().to(torch::kCPU);
  if (bytes.layout() != torch::kStrided) bytes = bytes.to_dense();
  bytes = bytes.resolve_conj().resolve_neg();
  if (!bytes.is_non_overlapping_and_dense()) bytes = bytes.contiguous();
  sum.add(std::span(static_cast<const std::byte*>(bytes.const_data_ptr()),
                    bytes.nbytes()));
}

std::string checksum_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) return "";
  Checksum sum;
  const bool is_strided = tensor.layout() == torch::kStrided;
  // On the host first: contiguous() would take memory of the device.
  add_elements(sum, is_strided ? tensor.detach().cpu().contiguous() : tensor);
  return sum.hex();
}

uint64_t sum_of_words(const torch::Tensor& tensor) {
  constexpr size_t kWords = 8;  // that the processor can add at the same time
  constexpr size_t kBytes = kWords * sizeof(uint64_t);
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  const size_t size = tensor.nbytes();
  std::array<uint64_t, kWords> sums{};
  std::array<uint64_t, kWords> words{};
  for (size_t at = 0; at < size; at += kBytes) {
    const size_t count = std::min(kBytes, size - at);
    if (count < kBytes) words = {};
    std::memcpy(words.data(), data + at, count);
    for (size_t i = 0; i < kWords; ++i) sums[i] += words[i];
  }
  return std::accumulate(sums.begin(), sums.end(), uint64_t{0});
}

SampledBits sampled_bits(const torch::Tensor& tensor) {
  SampledBits sample{};
  const auto most = static_cast<int64_t>(sample.size());
  const int64_t count = tensor.numel();
  const auto size = std::min<size_t>(tensor.element_size(), sizeof(uint64_t));
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  for (int64_t i = 0; i < std::min(count, most); ++i) {
    const int64_t at = count <= most ? i : (count - 1) * i / (most - 1);
    std::memcpy(&sample[static_cast<size_t>(i)],
                data + at * tensor.element_size(), size);
  }
  return sample;
}

uint64_t sample_of(const torch::Tensor& tensor) {
  uint64_t mixed = 0;
  for (const uint64_t bits : sampled_bits(tensor))
    mixed = mix_seed(mixed, bits);
  return mixed;
}

}  // namespace lockstep
