#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <torch/torch.h>

namespace lockstep {

/// `tensor` in memory without gaps: itself where it can be. Throws CommError
/// unless it is a strided CPU tensor.
at::Tensor dense(const at::Tensor& tensor);
std::span<std::byte> bytes_of(const at::Tensor& dense);
/// A dense tensor's memory as 1-d bytes.
at::Tensor byte_view(const at::Tensor& dense);

/// A dense stand-in for a tensor that gets a result.
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

/// `parts` must be one for each of `size` ranks, each like `like`; throws
/// CommError if not.
void check_parts(const std::vector<at::Tensor>& parts, const at::Tensor& like,
                 int size, const char* operation);

}  // namespace lockstep
