#pragma once

#include <chrono>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/transport/transport.h"

namespace lockstep {

/// Performs the collectives of a call whose arguments were checked: makes
/// tensors dense on the host, announces the call, finds the kernel of a
/// reduction, and lets a transport move the bytes. Lists of tensors have one
/// tensor for each rank.
class Moves {
 public:
  Moves(transport::Transport& bytes, int rank, int size,
        std::chrono::milliseconds timeout)
      : bytes_(bytes), rank_(rank), size_(size), timeout_(timeout) {}

  /// `tensor` may be sparse (COO).
  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  void reduce(const at::Tensor& tensor, int root,
              const c10d::ReduceOp& op) const;
  void broadcast(const at::Tensor& tensor, int root) const;
  void all_gather(at::TensorList outputs, const at::Tensor& input) const;
  void all_gather_into_tensor(const at::Tensor& output,
                              const at::Tensor& input) const;
  void gather(at::TensorList outputs, const at::Tensor& input, int root) const;
  void scatter(const at::Tensor& output, at::TensorList inputs, int root) const;
  void reduce_scatter(const at::Tensor& output, at::TensorList inputs,
                      const c10d::ReduceOp& op) const;
  void reduce_scatter_tensor(const at::Tensor& output, const at::Tensor& input,
                             const c10d::ReduceOp& op) const;
  void all_to_all(at::TensorList outputs, at::TensorList inputs) const;
  void barrier() const;
  /// Allocates memory of each rank, which all ranks map.
  std::shared_ptr<const std::vector<transport::RankMemory>> share(
      size_t bytes) const {
    return bytes_.share(bytes, timeout_);
  }

 private:
  /// Announces a collective to the other ranks.
  void begin(transport::Operation operation, const at::Tensor& tensor,
             int root = -1, const c10d::ReduceOp* op = nullptr) const;
  /// Reduces each part of a reduce-scatter to its rank. For parts of different
  /// sizes.
  void reduce_each(const at::Tensor& output, at::TensorList inputs,
                   const c10d::ReduceOp& op) const;

  transport::Transport& bytes_;
  int rank_;
  int size_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep
