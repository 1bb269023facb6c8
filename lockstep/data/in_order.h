#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep::data {

namespace detail {

/// Returns the next samples of `stream`, at most `count`; none at its end.
template <class D>
auto next_samples(D& stream, size_t count) {
  if constexpr (requires { stream.next(); }) {
    std::vector<std::decay_t<decltype(*stream.next())>> samples;
    while (samples.size() < count) {
      auto sample = stream.next();
      if (!sample) break;
      samples.push_back(*std::move(sample));
    }
    return samples;
  } else if constexpr (requires { *stream.get_batch(count); }) {
    auto batch = stream.get_batch(count);
    using Samples = std::decay_t<decltype(*batch)>;
    return batch ? *std::move(batch) : Samples();
  } else {
    return stream.get_batch(count);
  }
}

[[noreturn]] void refuse_short_stream(int64_t samples, int64_t found);

}  // namespace detail

/// Adapts a dataset that can only be read in order, from its beginning:
///
/// - reset() goes back to the beginning, and
/// - next() returns a std::optional of a sample, as in DatasetSource, or
/// - get_batch(count) returns a vector of up to `count` samples, as the
///   stateful datasets of torch::data do; an empty vector, or an empty
///   std::optional, at the end.
///
/// A stream is at one place at a time, so it can't be both the training data
/// and the test data. An epoch is the first `samples` samples. Each rank reads
/// all of them and keeps its part. They are not shuffled. A resumed run reads
/// the earlier samples again, or calls skip(count) if the dataset has it.
template <class D>
class InOrder {
 public:
  static constexpr bool kIsReadInOrder = true;
  using Samples = decltype(detail::next_samples(std::declval<D&>(), size_t{}));

  InOrder(std::shared_ptr<D> stream, int64_t samples)
      : stream_(std::move(stream)), samples_(samples) {}

  size_t size() const { return static_cast<size_t>(samples_); }
  const void* stream() const { return stream_.get(); }

  void set_epoch(int64_t epoch) {
    if (epoch != epoch_) restart(epoch);
  }

  /// `indices` are ascending. Samples between them are skipped.
  Samples get_batch(const std::vector<size_t>& indices) {
    Samples batch;
    for (const size_t index : indices) {
      if (index < at_) restart(epoch_);
      if (index > at_) skip(index - at_);
      batch.push_back(take());
    }
    return batch;
  }

 private:
  using Sample = typename Samples::value_type;

  void restart(int64_t epoch) {
    epoch_ = epoch;
    at_ = 0;
    if constexpr (requires { stream_->set_epoch(epoch); }) {
      stream_->set_epoch(epoch);
    }
    stream_->reset();
  }
  void skip(size_t count) {
    if constexpr (requires { stream_->skip(count); }) {
      stream_->skip(count);
      at_ += count;
    } else {
      for (size_t i = 0; i < count; ++i) take();
    }
  }
  Sample take() {
    Samples one = detail::next_samples(*stream_, 1);
    if (one.empty()) {
      detail::refuse_short_stream(samples_, static_cast<int64_t>(at_));
    }
    ++at_;
    return std::move(one.front());
  }

  std::shared_ptr<D> stream_;
  int64_t samples_;
  int64_t epoch_ = -1;
  size_t at_ = 0;  // samples read in this epoch
};

/// Makes a dataset for a Loader or Trainer::data() whose epochs are `samples`
/// samples of `stream`.
template <class D>
std::shared_ptr<InOrder<D>> in_order(std::shared_ptr<D> stream,
                                     int64_t samples) {
  return std::make_shared<InOrder<D>>(std::move(stream), samples);
}

}  // namespace lockstep::data

namespace lockstep {
using data::in_order;
}  // namespace lockstep
