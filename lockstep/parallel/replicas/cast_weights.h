#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Copies of a model's parameters in bfloat16, for autocast on the CPU.
///
/// Under autocast, each shard casts all weights in each step, and its backward
/// casts their gradients back. If a parameter is used only by that cast, the
/// cast and the leaf can trade places: the replicas of all shards have one
/// copy of the parameter in the smaller type as their leaf, and the update of
/// the parameter writes the copy while the block is in the cache. Gradients
/// then arrive in the smaller type, and are converted when they are summed. All
/// of this gives the bits of autocast.
///
/// The first step of a replica group scans the graph of a shard
/// (are_cast_once()) and makes the copies. The second step compares a shard of
/// a replica that uses them with one of the module itself. If they have the
/// same bits, the replicas use the copies from then on.
class CastWeights {
 public:
  /// Type of the copies.
  static constexpr at::ScalarType kType = at::ScalarType::BFloat16;

  enum class State {
    kUnknown,  ///< no graph was scanned yet
    kUntried,  ///< copies exist, but no replica has used them
    kInUse,
    kOff,  ///< there is nothing to copy, or the copies gave other bits
  };

  State state() const { return state_; }
  /// Returns whether there are copies, which each update has to write.
  bool exist() const {
    return state_ == State::kUntried || state_ == State::kInUse;
  }
  /// The copies, one for each of the group's parameters(), undefined where the
  /// replicas use the parameter itself.
  const std::vector<torch::Tensor>& copies() const { return copies_; }

  using Allocate = std::function<torch::Tensor(const torch::Tensor& like)>;
  /// Allocates copies of the parameters for which `is_cast` is true. Their
  /// values are not written yet. `allocate` returns a tensor laid out like its
  /// argument, which was never written.
  void make(const std::vector<torch::Tensor>& parameters,
            const std::vector<bool>& is_cast, const Allocate& allocate);
  void note_tried() { state_ = State::kInUse; }
  /// Drops the copies for as long as the replicas exist.
  void turn_off();
  /// Starts over, because the parameters or the replicas are others.
  void reset() { *this = CastWeights(); }

  /// Marks all copies as outdated.
  void invalidate() { is_valid_ = false; }
  /// Returns whether a parameter was changed, or invalidate() called, since the
  /// last note_written(). Looks at the memory, the version and some elements of
  /// each parameter. is_current() finds other changes.
  bool are_outdated(const std::vector<torch::Tensor>& parameters) const;
  /// Returns whether the parameters still have the type and layout of the
  /// copies.
  bool fit(const std::vector<torch::Tensor>& parameters) const;
  /// Returns whether the copies were written since they were made and since the
  /// last invalidate().
  bool are_valid() const { return is_valid_; }
  /// Records that the copies have the values of the parameters for which
  /// `is_written` is true.
  void note_written(const std::vector<torch::Tensor>& parameters,
                    const std::vector<bool>& is_written);

  /// Writes `length` elements of the copy of parameter `p` from `offset`, in
  /// memory order. Does nothing if there is no copy of `p`. Different threads
  /// may write different elements at the same time.
  void write(const torch::Tensor& parameter, size_t p, int64_t offset,
             int64_t length) const;
  /// Returns whether the copy has the values of the parameter in this range.
  bool is_current(const torch::Tensor& parameter, size_t p, int64_t offset,
                  int64_t length) const;

 private:
  /// State of a parameter when its copy was written.
  struct Seal {
    const void* data = nullptr;
    int64_t version = 0;
    uint64_t sample = 0;
    bool operator==(const Seal&) const = default;
  };
  static Seal seal_of(const torch::Tensor& parameter);

  State state_ = State::kUnknown;
  std::vector<torch::Tensor> copies_;
  std::vector<Seal> seals_;
  bool is_valid_ = false;
};

/// Returns which of `leaves` are used in the graph below `roots` only by one
/// cast of all of their elements to bfloat16, possibly of a view.
std::vector<bool> are_cast_once(const std::vector<torch::Tensor>& roots,
                                const std::vector<torch::Tensor>& leaves);

}  // namespace lockstep
