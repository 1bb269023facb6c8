#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Returns `tensor` in memory without gaps: `tensor` itself if it has none,
/// otherwise a copy. Throws CommError unless it is a strided CPU tensor.
at::Tensor dense(const at::Tensor& tensor);
std::span<std::byte> bytes_of(const at::Tensor& dense);
/// Returns a dense tensor's memory as 1-d bytes.
at::Tensor byte_view(const at::Tensor& dense);

/// A dense tensor that receives the result for a tensor which may have gaps.
class Result {
 public:
  explicit Result(const at::Tensor& tensor)
      : tensor_(tensor), dense_(lockstep::dense(tensor)) {}
  const at::Tensor& dense() const { return dense_; }
  std::span<std::byte> bytes() const { return bytes_of(dense_); }
  void write_back() {
    if (!dense_.is_same(tensor_)) tensor_.copy_(dense_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor dense_;
};

/// Throws CommError unless there is a part for each of `size` ranks, with the
/// type and the number of elements of `like`.
void check_parts(const std::vector<at::Tensor>& parts, const at::Tensor& like,
                 int size, const char* operation);

}  // namespace lockstep
