#include "lockstep/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/home_process.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/base/wait_until.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/random_stream.h"

namespace lockstep::data {
namespace {

[[noreturn]] void refuse_use(const std::string& what,
                             const std::string& expected, int64_t got) {
  throw InvalidArgument("data", {.code = ErrorCode::kMisuse,
                                 .what = what,
                                 .expected = expected,
                                 .got = fmt::format("{}", got)});
}

void check(const BatchSource* source, const LoaderOptions& options) {
  if (source == nullptr || source->size() < 1) {
    refuse_use("there is nothing to load", "at least 1 sample", 0);
  }
  if (options.batch_size() < 1) {
    refuse_use("bad batch size", "at least 1", options.batch_size());
  }
  const BatchPart& part = options.part();
  if (part.first < 0 || part.first > part.last || part.last > part.shards) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "there is no such part of a batch",
                 .expected = fmt::format("0 <= first <= last <= {} shards",
                                         part.shards),
                 .got = fmt::format("{} to {}", part.first, part.last)});
  }
  if (options.order() && source->is_read_in_order()) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kMisuse,
                 .what = "these samples can be read in one order only",
                 .fix = "leave out LoaderOptions().order()"});
  }
  if (options.workers() < 0) {
    refuse_use("bad number of loader workers", "at least 0", options.workers());
  }
  if (options.prefetch() < 1) {
    refuse_use("bad number of batches to prefetch", "at least 1",
               options.prefetch());
  }
}

// Returns the samples of `range` in every tensor of `value`.
c10::IValue part_of(const c10::IValue& value, const SampleRange& range) {
  if (value.isTensor()) {
    return value.toTensor().narrow(0, range.first, range.count());
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(part_of(element, range));
    }
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isGenericDict()) {
    auto dict = value.toGenericDict().copy();
    for (auto& entry : dict) entry.setValue(part_of(entry.value(), range));
    return dict;
  }
  if (value.isTensorList()) {
    c10::List<torch::Tensor> list;
    for (const torch::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.narrow(0, range.first, range.count()));
    }
    return list;
  }
  return value;
}

Batch part_of(const Batch& batch, const SampleRange& range) {
  std::vector<c10::IValue> arguments = batch.arguments();
  for (c10::IValue& argument : arguments) argument = part_of(argument, range);
  return make_batch(std::move(arguments), part_of(batch.any_target(), range),
                    range.count());
}

// The data that all batches of an epoch share.
struct Epoch {
  int64_t number;
  std::vector<int64_t> order;
};

}  // namespace

class Loader::Impl {
 public:
  Impl(std::shared_ptr<const BatchSource> source, const LoaderOptions& options)
      : source_(std::move(source)),
        options_(options),
        samples_(options.order() ? count_of(make_order(0, 0))
                                 : source_->size()) {
    if (options_.drop_last() && samples_ < options_.batch_size()) {
      refuse_use("a batch is larger than an epoch, and the last is dropped",
                 fmt::format("a batch size of at most {}", samples_),
                 options_.batch_size());
    }
    try {
      const int workers = source_->is_read_in_order()
                              ? std::min(options_.workers(), 1)
                              : options_.workers();
      for (int i = 0; i < workers; ++i) {
        workers_.push_back(
            start_thread("data", "a worker of the loader", [this] { work(); }));
      }
    } catch (...) {
      stop();  // the threads that did start
      throw;
    }
  }

  ~Impl() { stop(); }

  const HomeProcess& home() const { return home_; }

  int64_t batches() const {
    return options_.drop_last()
               ? samples_ / options_.batch_size()
               : (samples_ + options_.batch_size() - 1) / options_.batch_size();
  }

  void set_epoch(int64_t epoch, int64_t first_batch) {
    chosen_epoch_ = epoch;
    first_batch_ = first_batch;
  }

  std::shared_ptr<const Epoch> begin() {
    auto epoch = std::make_shared<Epoch>();
    epoch->number = chosen_epoch_;
    epoch->order = make_order(chosen_epoch_, samples_);
    {
      const std::lock_guard lock(mutex_);
      epoch_ = epoch;
      made_.clear();
      next_to_make_ = next_to_take_ = first_batch_;
    }
    changed_.notify_all();
    return epoch;
  }

  // Returns the next batch of `epoch`, or nothing at its end. Rethrows what a
  // worker threw.
  std::optional<Batch> next(const std::shared_ptr<const Epoch>& epoch) {
    std::unique_lock lock(mutex_);
    if (epoch != epoch_) {
      throw InvalidArgument(
          "data",
          {.code = ErrorCode::kMisuse,
           .what = "begin() of the loader was called after this iterator "
                   "was made",
           .fix = "use one iterator of a loader at a time"});
    }
    if (next_to_take_ >= batches()) return std::nullopt;
    const int64_t taken = next_to_take_++;
    if (workers_.empty()) return make(*epoch_, taken);
    if (!home_.is_this_process()) {
      throw InvalidArgument(
          "data",
          {.code = ErrorCode::kMisuse,
           .what = "the loader's workers don't exist in a child of fork()",
           .fix = "make the loader in the child, or with workers(0), which "
                  "reads in the thread that asks"});
    }
    changed_.notify_all();
    wait_until(changed_, lock, [&] { return made_.contains(taken); });
    const Made made = std::move(made_.extract(taken).mapped());
    if (made.error) std::rethrow_exception(made.error);
    return made.batch;
  }

 private:
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      is_stopping_ = true;
    }
    changed_.notify_all();
    for (auto& worker : workers_) worker.join();
  }

  const HomeProcess home_;

  struct Made {
    Batch batch;
    std::exception_ptr error;
  };

  bool has_work() const {
    return epoch_ && next_to_make_ < batches() &&
           next_to_make_ < next_to_take_ + options_.prefetch();
  }

  void work() {
    leave_slice();
    std::unique_lock lock(mutex_);
    while (true) {
      wait_until(changed_, lock, [this] { return is_stopping_ || has_work(); });
      if (is_stopping_) return;
      const std::shared_ptr<const Epoch> epoch = epoch_;
      const int64_t number = next_to_make_++;
      lock.unlock();
      Made made;
      try {
        made.batch = make(*epoch, number);
      } catch (...) {
        made.error = std::current_exception();
      }
      lock.lock();
      // begin() may have been called meanwhile. Then nothing waits for this
      // batch.
      if (epoch == epoch_) {
        made_.emplace(number, std::move(made));
        changed_.notify_all();
      }
    }
  }

  static int64_t count_of(const std::vector<int64_t>& order) {
    return static_cast<int64_t>(order.size());
  }

  // `samples`: the required number; 0: any number except 0.
  std::vector<int64_t> make_order(int64_t epoch, int64_t samples) const {
    const int64_t size = source_->size();
    if (options_.order()) {
      return checked(options_.order()(size, epoch), samples);
    }
    return epoch_order(size, options_.shuffle() && !source_->is_read_in_order(),
                       options_.seed(), epoch);
  }

  // Checks the order that a user's function returned.
  std::vector<int64_t> checked(std::vector<int64_t> order,
                               int64_t samples) const {
    const int64_t size = source_->size();
    for (const int64_t index : order) {
      if (index >= 0 && index < size) continue;
      refuse_use("the order of an epoch names a sample that is not there",
                 fmt::format("0 to {}", size - 1), index);
    }
    if (order.empty() || (samples > 0 && count_of(order) != samples)) {
      refuse_use("the order of an epoch has another length",
                 samples > 0 ? fmt::format("{}, as in epoch 0", samples)
                             : "at least 1 sample",
                 count_of(order));
    }
    return order;
  }

  Batch make(const Epoch& epoch, int64_t number) const {
    const int64_t begin = number * options_.batch_size();
    const int64_t total = std::min(options_.batch_size(), samples_ - begin);
    const SampleRange own =
        samples_of({options_.part().first, options_.part().last}, total,
                   options_.part().shards);
    const auto indices =
        std::span(epoch.order)
            .subspan(static_cast<size_t>(begin), static_cast<size_t>(total));
    Batch batch;
    if (source_->reads_whole_batches()) {
      batch = part_of(read(indices, epoch.number), own);
    } else {
      batch = read(indices.subspan(static_cast<size_t>(own.first),
                                   static_cast<size_t>(own.count())),
                   epoch.number);
    }
    batch.total = total;
    return batch;
  }

  Batch read(std::span<const int64_t> indices, int64_t epoch) const {
    // With several workers, the source can be read by several threads.
    std::unique_lock<std::mutex> turn;
    if (options_.workers() <= 1) turn = take_turn(*source_);
    Batch batch = source_->read(indices, epoch);
    if (batch.samples == static_cast<int64_t>(indices.size())) return batch;
    refuse_use("the source of the data made a batch of another size",
               counted(static_cast<int64_t>(indices.size()), "sample"),
               batch.samples);
  }

  const std::shared_ptr<const BatchSource> source_;
  const LoaderOptions options_;
  const int64_t samples_;  // samples in an epoch
  int64_t chosen_epoch_ = 0;
  int64_t first_batch_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;  ///< anything below
  std::shared_ptr<const Epoch> epoch_;
  std::map<int64_t, Made> made_;
  int64_t next_to_make_ = 0;
  int64_t next_to_take_ = 0;
  bool is_stopping_ = false;
  std::vector<std::thread> workers_;
};

Loader::Loader(std::shared_ptr<const BatchSource> source,
               const LoaderOptions& options) {
  check(source.get(), options);
  impl_ = std::make_unique<Impl>(std::move(source), options);
}

Loader::Loader(std::shared_ptr<const Dataset> dataset,
               const LoaderOptions& options)
    : Loader(std::make_shared<ImageSource>(std::move(dataset)), options) {}

Loader::~Loader() {
  // Nobody can end the workers in a child, and nobody may destroy what they
  // use.
  if (!impl_->home().is_this_process()) static_cast<void>(impl_.release());
}

void Loader::set_epoch(int64_t epoch, int64_t first_batch) {
  if (epoch < 0 || first_batch < 0) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "an epoch can't begin there",
                 .expected = "an epoch and a batch of at least 0",
                 .got = fmt::format("epoch {}, batch {}", epoch, first_batch)});
  }
  impl_->set_epoch(epoch, first_batch);
}

// The position that the copies of an iterator share.
struct Loader::Iterator::Position {
  Impl& loader;
  std::shared_ptr<const Epoch> epoch;
  std::optional<Batch> batch = std::nullopt;
  bool is_at_end = false;
};

Loader::Iterator::Iterator(std::shared_ptr<Position> position)
    : position_(std::move(position)) {}

bool Loader::Iterator::is_at_end() const {
  if (!position_) return true;
  if (!position_->batch && !position_->is_at_end) {
    position_->batch = position_->loader.next(position_->epoch);
    position_->is_at_end = !position_->batch;
  }
  return position_->is_at_end;
}

Batch& Loader::Iterator::operator*() const {
  if (!is_at_end()) return *position_->batch;
  throw InvalidArgument("data", {.code = ErrorCode::kMisuse,
                                 .what = "there is no batch after the last one",
                                 .fix = "compare the iterator with end()"});
}

Loader::Iterator& Loader::Iterator::operator++() {
  // Skips a batch that was not used.
  if (!is_at_end()) position_->batch.reset();
  return *this;
}

bool Loader::Iterator::operator==(const Iterator& other) const {
  if (position_ == other.position_) return true;
  return is_at_end() && other.is_at_end();
}

Loader::Iterator Loader::begin() {
  return Iterator(std::make_shared<Iterator::Position>(
      Iterator::Position{.loader = *impl_, .epoch = impl_->begin()}));
}

Loader::Iterator Loader::end() { return {}; }

int64_t Loader::batches() const { return impl_->batches(); }

}  // namespace lockstep::data
