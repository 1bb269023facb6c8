#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/data.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/data/batch_source.h"

// Batches from the user's own datasets, or from datasets of torch::data.
namespace lockstep::data {

namespace detail {

/// Stacks `values`, one of each sample: tensors along a new first dimension,
/// numbers into a tensor; tuples, lists and dicts element by element. Throws
/// InvalidArgument if they can't be stacked.
c10::IValue stack(const std::vector<c10::IValue>& values);

/// Splits a sample into its inputs and its target. A sample is a
/// torch::data::Example, a pair, or a single tensor, which is its own target.
template <class Sample>
std::pair<c10::IValue, c10::IValue> parts_of(Sample sample) {
  if constexpr (requires {
                  sample.data;
                  sample.target;
                }) {
    using Target = std::decay_t<decltype(sample.target)>;
    if constexpr (std::is_same_v<Target, torch::data::example::NoTarget>) {
      const c10::IValue inputs(std::move(sample.data));
      return {inputs, inputs};
    } else {
      return {c10::IValue(std::move(sample.data)),
              c10::IValue(std::move(sample.target))};
    }
  } else if constexpr (requires {
                         sample.first;
                         sample.second;
                       }) {
    return {c10::IValue(std::move(sample.first)),
            c10::IValue(std::move(sample.second))};
  } else {
    const c10::IValue inputs(std::move(sample));
    return {inputs, inputs};
  }
}

/// Returns `inputs` as the arguments of a forward() that takes `count` of them;
/// 0: as many as the tuple has elements.
std::vector<c10::IValue> as_arguments(const c10::IValue& inputs, size_t count);

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {
  using Value = T;
};

/// Reads the samples at `indices`: a batch of the dataset, or a vector of
/// samples.
template <class D>
auto read_all(D& dataset, std::span<const int64_t> indices) {
  if constexpr (requires(std::vector<size_t> i) { dataset.get_batch(i); }) {
    // A torch::data dataset applies its transforms to batches.
    return dataset.get_batch(
        std::vector<size_t>(indices.begin(), indices.end()));
  } else {
    using Sample = decltype(dataset.get(size_t{0}));
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (const int64_t index : indices) {
      samples.push_back(dataset.get(static_cast<size_t>(index)));
    }
    return samples;
  }
}

int64_t size_of_dataset(std::optional<size_t> size);

}  // namespace detail

/// Makes batches of `dataset`, which has a size() and one of
///
/// - get(index), one sample: a torch::data::Example, a pair of inputs and
///   target, or a tensor; or
/// - get_batch(indices), as in the datasets of torch::data, also after map():
///   several samples, or a batch of them.
///
/// Samples are stacked, or joined by `collate`, which makes the inputs and the
/// target of a whole batch from a vector of samples. If the loader has more
/// than one worker, several threads use the dataset at once. Otherwise only one
/// does, even if the dataset is both the training data and the test data.
template <class D>
class DatasetSource : public BatchSource {
 public:
  using Read = decltype(detail::read_all(std::declval<D&>(),
                                         std::span<const int64_t>()));

  /// `arguments`: the number of arguments of the module's forward(). 0: the
  /// number of elements if a sample is a tuple, else one.
  explicit DatasetSource(std::shared_ptr<D> dataset, size_t arguments = 0)
      : dataset_(std::move(dataset)), arguments_(arguments) {}

  /// Sets a function that joins samples instead of stacking them.
  template <class Collate>
  void set_collate(const Collate& collate) {
    static_assert(detail::IsVector<Read>::value,
                  "the dataset makes batches itself: there is nothing to "
                  "collate");
    collate_ = [collate](Read samples) {
      return detail::parts_of(collate(std::move(samples)));
    };
  }

  int64_t size() const override {
    return detail::size_of_dataset(dataset_->size());
  }
  bool reads_whole_batches() const override { return collate_ != nullptr; }
  bool is_read_in_order() const override {
    return requires { D::kIsReadInOrder; };
  }
  const void* object_of_one_thread() const override {
    if constexpr (requires {
                    D::kIsReadInOrder;
                    dataset_->stream();
                  }) {
      return dataset_->stream();
    } else {
      return dataset_.get();
    }
  }
  std::string fingerprint() const override {
    if constexpr (requires { dataset_->fingerprint(); }) {
      return dataset_->fingerprint();
    } else {
      return "";
    }
  }

  Batch read(std::span<const int64_t> indices, int64_t epoch) const override {
    if constexpr (requires { dataset_->set_epoch(epoch); }) {
      dataset_->set_epoch(epoch);
    }
    if (indices.empty()) {
      // In a short batch, a rank may have no sample. It runs nothing then.
      const size_t count = std::max<size_t>(arguments_, 1);
      return make_batch(std::vector<c10::IValue>(count, torch::empty({0})),
                        torch::empty({0}),
                        /*samples=*/0);
    }
    const auto [inputs, target] = parts(indices);
    return make_batch(detail::as_arguments(inputs, arguments_), target,
                      static_cast<int64_t>(indices.size()));
  }

 private:
  std::pair<c10::IValue, c10::IValue> parts(
      std::span<const int64_t> indices) const {
    auto read = detail::read_all(*dataset_, indices);
    if constexpr (detail::IsVector<Read>::value) {
      if (collate_) return collate_(std::move(read));
      std::vector<c10::IValue> inputs, targets;
      for (auto& sample : read) {
        auto [input, target] = detail::parts_of(std::move(sample));
        inputs.push_back(std::move(input));
        targets.push_back(std::move(target));
      }
      return {detail::stack(inputs), detail::stack(targets)};
    } else {
      return detail::parts_of(std::move(read));
    }
  }

  std::shared_ptr<D> dataset_;
  size_t arguments_;
  std::function<std::pair<c10::IValue, c10::IValue>(Read)> collate_;
};

}  // namespace lockstep::data
