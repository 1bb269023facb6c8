#pragma once

#include <cstddef>
#include <span>

#include "lockstep/comm/collectives/collectives.h"
#include "lockstep/shm/call.h"
#include "lockstep/shm/collectives.h"

namespace lockstep {

/// Returns whether calls are compared in every detail (LOCKSTEP_DEBUG=detail).
bool is_debug_detail();

/// Collectives of tensors on the host. This class makes the tensors dense,
/// describes the call, and finds the reduction's kernel. Derived classes move
/// the bytes.
class HostCollectives : public Collectives {
 public:
  HostCollectives(int rank, int size) : rank_(rank), size_(size) {}

  void all_reduce(const at::Tensor& tensor, const c10d::ReduceOp& op,
                  Timeout timeout) final;
  void all_reduce_coalesced(const Tensors& tensors, const c10d::ReduceOp& op,
                            Timeout timeout) final;
  // Value for shm, where an extra message costs a microsecond or two.
  size_t small_message_bytes() const override { return 4 << 10; }
  void reduce(const at::Tensor& tensor, int root, const c10d::ReduceOp& op,
              Timeout timeout) final;
  void broadcast(const at::Tensor& tensor, int root, Timeout timeout) final;
  void all_gather(const Tensors& outputs, const at::Tensor& input,
                  Timeout timeout) final;
  void gather(const Tensors& outputs, const at::Tensor& input, int root,
              Timeout timeout) final;
  void scatter(const at::Tensor& output, const Tensors& inputs, int root,
               Timeout timeout) final;
  void reduce_scatter(const at::Tensor& output, const Tensors& inputs,
                      const c10d::ReduceOp& op, Timeout timeout) final;
  void all_to_all(const Tensors& outputs, const Tensors& inputs,
                  Timeout timeout) final;
  void barrier(Timeout timeout) final;

 protected:
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Called before each of the functions below. Throws CommError if the ranks
  /// can't continue together, and InvalidArgument for a root that is not a
  /// rank.
  virtual void begin(const shm::Call& call, Timeout timeout) = 0;
  /// Same as shm::all_reduce(). A reduction with combine_scaled() multiplies
  /// each rank's data by its factor.
  virtual void all_reduce_bytes(Bytes data,
                                const shm::Reduction& reduction) = 0;
  // Same as the functions with these names in shm/collectives.h. `outputs` of
  // gather and `inputs` of scatter are empty on all ranks except root.
  virtual void reduce_bytes(Bytes data, int root,
                            const shm::Reduction& reduction) = 0;
  virtual void broadcast_bytes(Bytes data, int root) = 0;
  virtual void all_gather_bytes(ConstBytes input,
                                std::span<const Bytes> outputs) = 0;
  virtual void gather_bytes(ConstBytes input, std::span<const Bytes> outputs,
                            int root) = 0;
  virtual void scatter_bytes(Bytes output, std::span<const ConstBytes> inputs,
                             int root) = 0;
  virtual void reduce_scatter_bytes(Bytes output,
                                    std::span<const ConstBytes> inputs,
                                    const shm::Reduction& reduction) = 0;
  virtual void all_to_all_bytes(std::span<const Bytes> outputs,
                                std::span<const ConstBytes> inputs) = 0;
  virtual void wait_for_all() = 0;  ///< barrier

 private:
  /// Returns memory of at least `bytes`, which is kept for the next call.
  std::span<std::byte> message_of(size_t bytes);

  at::Tensor message_;
  int rank_;
  int size_;
};

}  // namespace lockstep
