#pragma once

#include <cstddef>
#include <span>

#include <torch/types.h>

namespace lockstep {

/// Returns the values of `tensor`, which is strided, in memory of the host
/// without gaps: `tensor` itself if it is there, otherwise a copy.
at::Tensor dense(const at::Tensor& tensor);
std::span<std::byte> bytes_of_dense(const at::Tensor& dense);
/// Waits until this thread's stream on the device of `tensor` has done its
/// work. Returns at once for a tensor on the host.
void wait_for_stream_of(const at::Tensor& tensor);
/// Copies `source` to `destination`, a tensor of the caller. It may have been
/// made in inference mode, and this thread may not be in that mode.
void copy_to(const at::Tensor& destination, const at::Tensor& source);
/// Does copy_to(), and waits until the values are there. If the destination is
/// on a GPU and has gaps, LibTorch's copy ends with a kernel.
void copy_and_wait(const at::Tensor& destination, const at::Tensor& source);

/// A dense tensor that receives the result for a tensor which may have gaps or
/// be on another device.
class Result {
 public:
  explicit Result(const at::Tensor& tensor)
      : tensor_(tensor), dense_(lockstep::dense(tensor)) {}
  const at::Tensor& dense() const { return dense_; }
  std::span<std::byte> bytes() const { return bytes_of_dense(dense_); }
  /// Copies the result into the tensor. It is there when this returns, also for
  /// streams other than this thread's.
  void write_back() {
    if (!dense_.is_same(tensor_)) copy_and_wait(tensor_, dense_);
  }

 private:
  at::Tensor tensor_;
  at::Tensor dense_;
};

}  // namespace lockstep
