#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/base/error_code.h"

namespace lockstep {

/// Checks the arguments of an operation of a rank in a group of `size`. All
/// backends check here, before anything is sent, so a refused call has no
/// effect on the other ranks. Each check throws InvalidArgument naming the
/// operation as c10d does ("broadcast"): kBadRank for a root or a peer,
/// kBadOption for a tag or split sizes, kBadTensor for everything else.
class CallChecks {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `device_type` is the required device type of tensors. Without a value, any
  /// device is allowed.
  CallChecks(const char* operation, int rank, int size,
             std::optional<c10::DeviceType> device_type)
      : operation_(operation),
        rank_(rank),
        size_(size),
        device_type_(device_type) {}

  /// Checks that `root` is a rank. `root_tensor` is c10d's index in a list of
  /// tensors, which has one entry here.
  void root(int64_t root, int64_t root_tensor = 0) const;
  /// Checks that `peer` is another rank, to send to or to receive from.
  void peer(int peer) const;
  void tag(int tag) const;

  /// Checks for a dense tensor on the right device. If it will be written, each
  /// element must have its own memory.
  void input(const at::Tensor& tensor) const;
  void output(const at::Tensor& tensor) const;
  void inputs(const Tensors& tensors) const;
  void outputs(const Tensors& tensors) const;
  /// Checks that there is one part for each rank, with the type and the number
  /// of elements of `like`.
  void parts(const Tensors& parts, const at::Tensor& like) const;
  /// Checks that `whole` has the size of one `part` for each rank.
  void whole(const at::Tensor& whole, const at::Tensor& part) const;
  /// Checks that there is at least one tensor, and that all have one type.
  void coalesced(const Tensors& tensors) const;
  /// Checks that a rank sends itself as much as it receives from itself.
  void same_size(const at::Tensor& output, const at::Tensor& input) const;
  void same_type(const at::Tensor& tensor, const at::Tensor& other) const;
  void same_count(const char* what, size_t expected, size_t count) const;
  /// Checks that the type of `tensor` supports the reduction. NCCL checks that
  /// itself.
  void reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  /// Checks that `splits` are sizes along the first dimension of `tensor`, one
  /// for each rank. If there are none, the tensor is cut evenly.
  void splits(const at::Tensor& tensor,
              const std::vector<int64_t>& splits) const;

  /// Returns the only item. c10d passes lists for ranks with several devices.
  /// Here a rank has one.
  template <typename List>
  const auto& only(const List& list) const {
    same_count("a list with one item, for one device of a rank", 1,
               list.size());
    return list[0];
  }
  /// Returns the only item of the list on root. On other ranks the list must be
  /// empty, and so is the result.
  const Tensors& only_at_root(const std::vector<Tensors>& lists,
                              int64_t root) const;

 private:
  void memory(const at::Tensor& tensor) const;
  [[noreturn]] void refuse(ErrorCode code, const std::string& what,
                           const std::string& expected, const std::string& got,
                           const std::string& fix = {}) const;

  const char* operation_;
  int rank_;
  int size_;
  std::optional<c10::DeviceType> device_type_;
};

}  // namespace lockstep
