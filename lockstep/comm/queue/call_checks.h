#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "lockstep/base/error_code.h"

namespace lockstep {

/// What a caller may pass to an operation of a rank in a world of `size`. It is
/// checked here, for all backends, before anything is sent: a refused call has
/// no effect on the other ranks. Each check throws InvalidArgument, which names
/// the operation as c10d does ("broadcast"): kBadRank for a root or a peer,
/// kBadOption for a tag or split sizes, kBadTensor for all else.
class CallChecks {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// `device_type` says where tensors must be. Without a value, they may be
  /// anywhere.
  CallChecks(const char* operation, int rank, int size,
             std::optional<c10::DeviceType> device_type)
      : operation_(operation),
        rank_(rank),
        size_(size),
        device_type_(device_type) {}

  /// `root` is a rank. `root_tensor` is c10d's index in a list of tensors,
  /// which has one entry here.
  void root(int64_t root, int64_t root_tensor = 0) const;
  /// `peer` is another rank, to send to or to receive from.
  void peer(int peer) const;
  void tag(int tag) const;

  /// A dense tensor on the right device, with memory of its own for each
  /// element if it is to be written.
  void input(const at::Tensor& tensor) const;
  void output(const at::Tensor& tensor) const;
  void inputs(const Tensors& tensors) const;
  void outputs(const Tensors& tensors) const;
  /// There is one part for each rank, with the type and the number of elements
  /// of `like`.
  void parts(const Tensors& parts, const at::Tensor& like) const;
  /// `whole` has the size of one `part` for each rank.
  void whole(const at::Tensor& whole, const at::Tensor& part) const;
  /// There is at least one tensor, and all have one type.
  void coalesced(const Tensors& tensors) const;
  /// A rank sends itself as much as it receives from itself.
  void same_size(const at::Tensor& output, const at::Tensor& input) const;
  void same_type(const at::Tensor& tensor, const at::Tensor& other) const;
  void same_count(const char* what, size_t expected, size_t count) const;
  /// The type of `tensor` has the reduction. NCCL checks that itself.
  void reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) const;
  /// `splits` are sizes along the first dimension of `tensor`, one for each
  /// rank. If there are none, the tensor is cut evenly.
  void splits(const at::Tensor& tensor,
              const std::vector<int64_t>& splits) const;

  /// c10d passes lists for a rank that has several devices; here it has one.
  template <typename List>
  const auto& only(const List& list) const {
    same_count("a list with one item, for one device of a rank", 1,
               list.size());
    return list[0];
  }
  /// On root, the only item of the list. On other ranks the list must be empty,
  /// and so is the result.
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
