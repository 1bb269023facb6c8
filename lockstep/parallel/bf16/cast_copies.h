#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <torch/types.h>

namespace lockstep {

/// Copies of a model's parameters in bfloat16. CastWeights says what for.
class CastCopies {
 public:
  /// Type of the copies.
  static constexpr at::ScalarType kType = at::ScalarType::BFloat16;

  /// The copies, one for each of the group's parameters(), undefined where the
  /// replicas use the parameter itself.
  const std::vector<torch::Tensor>& tensors() const { return copies_; }

  using Allocate = std::function<torch::Tensor(const torch::Tensor& like)>;
  /// Allocates copies of the parameters for which `is_cast` is true. Their
  /// values are not written yet. `allocate` returns a tensor laid out like its
  /// argument, which was never written.
  void make(const std::vector<torch::Tensor>& parameters,
            const std::vector<bool>& is_cast, const Allocate& allocate);
  /// Drops the copies.
  void reset() { *this = CastCopies(); }

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

  std::vector<torch::Tensor> copies_;
  std::vector<Seal> seals_;
  bool is_valid_ = false;
};

/// Returns which of `leaves` are used in the graph below `roots` only by one
/// cast of all of their elements to bfloat16, possibly of a view.
std::vector<bool> are_cast_once(const std::vector<torch::Tensor>& roots,
                                const std::vector<torch::Tensor>& leaves);

}  // namespace lockstep
