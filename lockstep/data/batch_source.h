#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/types.h>

namespace lockstep::data {

/// Samples that are trained on together, or a rank's part of them. `data` and
/// `target` are those of a torch::data::Example:
///
///     model->train_step(batch.data, batch.target, loss, optimizer);
struct Batch {
  torch::Tensor data{};    ///< input of the module, (N, ...)
  torch::Tensor target{};  ///< what the loss compares the output with, (N, ...)
  /// Arguments of a forward() that does not take one tensor. Each is a tensor
  /// of (N, ...), or a tuple, list or dict of such tensors. `data` is then
  /// undefined.
  std::vector<c10::IValue> inputs{};
  /// Target that is not one tensor. `target` is then undefined.
  c10::IValue nested_target{};
  int64_t samples = 0;  ///< N
  int64_t total = 0;    ///< samples of the whole batch, on all ranks

  /// Returns `inputs`, or `data` if `inputs` is empty.
  std::vector<c10::IValue> arguments() const;
  /// Returns `target`, or `nested_target` if it is undefined. The result is
  /// None if there is neither.
  c10::IValue any_target() const;
};

/// Returns a batch of `samples` samples. `arguments` become `data` if they are
/// one tensor, and `inputs` if not. `target` likewise becomes `target` or
/// `nested_target`.
Batch make_batch(std::vector<c10::IValue> arguments, c10::IValue target,
                 int64_t samples);

/// Interface to the samples of which a Loader makes batches. They can be read
/// in any order. Several threads read them at once only if their loader has
/// several workers, or if object_of_one_thread() is null.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Returns the number of samples in an epoch.
  virtual int64_t size() const = 0;
  /// Returns the name of one sample, in the singular, for the line with which a
  /// run begins: "image".
  virtual std::string sample_name() const { return "sample"; }
  /// Returns the samples `indices`, in that order, as one batch. The loader
  /// fills in `total`. A sample may depend on the epoch (augmentation), but not
  /// on the other samples or on the thread.
  virtual Batch read(std::span<const int64_t> indices, int64_t epoch) const = 0;
  /// Returns true if a batch depends on which samples are in it (because of
  /// padding, say). A rank then reads whole batches and keeps its part, so a
  /// shard is the same whichever rank reads it.
  virtual bool reads_whole_batches() const { return false; }
  /// Returns true if samples can only be read in the order of their numbers.
  /// They are then not shuffled, and one thread reads them.
  virtual bool is_read_in_order() const { return false; }
  /// Returns a SHA-256 in hex of the data, which must be the same when a run is
  /// resumed; "" if it is not known. May take seconds.
  virtual std::string fingerprint() const { return ""; }
  /// Returns the object that read() and fingerprint() use, if only one thread
  /// may use it at a time. Two sources may have the same one: the training data
  /// may also be the evaluation data. Null: any number of threads may use the
  /// source.
  virtual const void* object_of_one_thread() const { return this; }
};

/// Waits until no other caller has a turn with the same object_of_one_thread().
/// The turn lasts as long as the lock.
[[nodiscard]] std::unique_lock<std::mutex> take_turn(const BatchSource& source);

}  // namespace lockstep::data
