#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/batch.h"

namespace lockstep::data {

/// Interface to the samples of which a Loader makes batches. They can be read
/// in any order, and by several threads at once if the loader has several
/// workers.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Returns the number of samples in an epoch.
  virtual int64_t size() const = 0;
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
};

}  // namespace lockstep::data
