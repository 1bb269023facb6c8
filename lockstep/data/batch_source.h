#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/batch.h"

namespace lockstep::data {

/// Where a Loader gets its batches from: samples that can be read in any order.
/// Used by several threads at once if the loader has several workers.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Samples of an epoch.
  virtual int64_t size() const = 0;
  /// The samples `indices`, in that order, as one batch; `total` is filled in
  /// by the loader. What a sample is may depend on the epoch (augmentation),
  /// but on nothing else: not on the other samples, nor on the thread.
  virtual Batch read(std::span<const int64_t> indices, int64_t epoch) const = 0;
  /// True if what a batch looks like depends on which samples are in it
  /// (padding, say). A rank then reads whole batches and keeps its part, so
  /// that a shard is the same whoever reads it.
  virtual bool reads_whole_batches() const { return false; }
  /// True if samples can be read in the order of their numbers only. They are
  /// not shuffled then, and one thread reads them.
  virtual bool is_read_in_order() const { return false; }
  /// What a run that goes on must find again, as SHA-256 in hex; "" if that is
  /// not known. May take seconds.
  virtual std::string fingerprint() const { return ""; }
};

}  // namespace lockstep::data
