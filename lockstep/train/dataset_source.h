#pragma once

#include <algorithm>
#include <concepts>
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

// Batches from datasets of the user's own, or of torch::data.
namespace lockstep::train {

namespace detail {

/// Stacks what is alike in `values`, one of each sample: tensors along a new
/// first dimension, numbers to a tensor of them; tuples, lists and dicts
/// element by element. Throws InvalidArgument if they can't be stacked.
c10::IValue stack(const std::vector<c10::IValue>& values);

/// A sample as its inputs and its target: of a torch::data::Example, a pair, or
/// a tensor alone, which is its own target.
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

/// `inputs` as the arguments of a forward() that takes `count` of them; 0: as
/// many as a tuple has elements.
std::vector<c10::IValue> as_arguments(const c10::IValue& inputs, size_t count);

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {
  using Value = T;
};

/// What a dataset gives for indices: its own batches, or a vector of samples.
template <class D>
auto read_all(D& dataset, std::span<const int64_t> indices) {
  if constexpr (requires(std::vector<size_t> i) { dataset.get_batch(i); }) {
    // A torch::data dataset, whose transforms are applied to batches.
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

/// Batches of `dataset`, which has a size() and
///
/// - get(index), one sample: a torch::data::Example, a pair of inputs and
///   target, or a tensor; or
/// - get_batch(indices), as the datasets of torch::data have it, also after
///   map(): several samples, or a batch of them.
///
/// Samples are stacked, or joined by `collate`, which makes inputs and target
/// of a whole batch out of a vector of samples. With more than one worker of
/// the loader the dataset is used by several threads at once.
template <class D>
class DatasetSource : public data::BatchSource {
 public:
  using Read = decltype(detail::read_all(std::declval<D&>(),
                                         std::span<const int64_t>()));

  /// `arguments`: how many the module's forward() takes; 0: what a sample has,
  /// where that is a tuple, else one.
  DatasetSource(std::shared_ptr<D> dataset, size_t arguments)
      : dataset_(std::move(dataset)), arguments_(arguments) {}

  /// Joins samples in another way than stacking them.
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
  std::string fingerprint() const override {
    if constexpr (requires { dataset_->fingerprint(); }) {
      return dataset_->fingerprint();
    } else {
      return "";
    }
  }

  data::Batch read(std::span<const int64_t> indices,
                   int64_t epoch) const override {
    if constexpr (requires { dataset_->set_epoch(epoch); }) {
      dataset_->set_epoch(epoch);
    }
    if (indices.empty()) {
      // Of a short batch a rank may have no sample, and runs nothing.
      const size_t count = std::max<size_t>(arguments_, 1);
      return {.inputs = std::vector<c10::IValue>(count, torch::empty({0})),
              .target = torch::empty({0})};
    }
    auto [inputs, target] = parts(indices);
    return {.inputs = detail::as_arguments(inputs, arguments_),
            .target = target,
            .samples = static_cast<int64_t>(indices.size())};
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

}  // namespace lockstep::train
