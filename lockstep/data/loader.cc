#include "lockstep/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "lockstep/base/chunk.h"
#include "lockstep/base/cores.h"
#include "lockstep/base/error.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/data/random_stream.h"
#include "lockstep/data/sample_writer.h"

namespace lockstep::data {
namespace {

void check(const Dataset* dataset, const LoaderOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& expected,
                         int64_t got) {
    throw InvalidArgument("data", {.code = ErrorCode::kMisuse,
                                   .what = what,
                                   .expected = expected,
                                   .got = fmt::format("{}", got)});
  };
  if (dataset == nullptr || dataset->size() < 1) {
    refuse("there is nothing to load", "at least 1 sample", 0);
  }
  if (options.batch_size < 1) {
    refuse("bad batch size", "at least 1", options.batch_size);
  }
  const BatchPart& part = options.part;
  if (part.first < 0 || part.first > part.last || part.last > part.shards) {
    throw InvalidArgument(
        "data", {.code = ErrorCode::kBadOption,
                 .what = "there is no such part of a batch",
                 .expected = fmt::format("0 <= first <= last <= {} shards",
                                         part.shards),
                 .got = fmt::format("{} to {}", part.first, part.last)});
  }
  if (options.workers < 0) {
    refuse("bad number of loader workers", "at least 0", options.workers);
  }
  if (options.prefetch < 1) {
    refuse("bad number of batches to prefetch", "at least 1", options.prefetch);
  }
  if (options.drop_last && dataset->size() < options.batch_size) {
    refuse("a batch is larger than the dataset, and the last is dropped",
           fmt::format("a batch size of at most {}", dataset->size()),
           options.batch_size);
  }
}

// What is the same for all batches of an epoch.
struct Epoch {
  int64_t number;
  std::vector<int64_t> order;
};

}  // namespace

class Loader::Impl {
 public:
  Impl(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options)
      : dataset_(std::move(dataset)),
        options_(options),
        writer_(*dataset_, options.channels_last ? PixelOrder::kPixels
                                                 : PixelOrder::kPlanes) {
    try {
      for (int i = 0; i < options_.workers; ++i) {
        workers_.push_back(
            start_thread("data", "a worker of the loader", [this] { work(); }));
      }
    } catch (...) {
      stop();  // those that did start
      throw;
    }
  }

  ~Impl() { stop(); }

  int64_t batches() const {
    const int64_t size = dataset_->size();
    return options_.drop_last
               ? size / options_.batch_size
               : (size + options_.batch_size - 1) / options_.batch_size;
  }

  void begin(int64_t number, int64_t first_batch) {
    auto epoch = std::make_shared<Epoch>();
    epoch->number = number;
    if (options_.shuffle) {
      epoch->order = shuffled_order(dataset_->size(), options_.seed, number);
    } else {
      epoch->order.resize(static_cast<size_t>(dataset_->size()));
      std::iota(epoch->order.begin(), epoch->order.end(), int64_t{0});
    }
    {
      const std::lock_guard lock(mutex_);
      epoch_ = std::move(epoch);
      made_.clear();
      next_to_make_ = next_to_take_ = first_batch;
    }
    changed_.notify_all();
  }

  std::optional<Batch> next() {
    std::unique_lock lock(mutex_);
    if (!epoch_) {
      throw InvalidArgument("data", {.code = ErrorCode::kMisuse,
                                     .what = "no epoch was begun",
                                     .fix = "call begin() before next()"});
    }
    if (next_to_take_ >= batches()) return std::nullopt;
    const int64_t taken = next_to_take_++;
    if (workers_.empty()) return make(*epoch_, taken);
    changed_.notify_all();
    changed_.wait(lock, [&] { return made_.contains(taken); });
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

  struct Made {
    Batch batch;
    std::exception_ptr error;
  };

  bool has_work() const {
    return epoch_ && next_to_make_ < batches() &&
           next_to_make_ < next_to_take_ + options_.prefetch;
  }

  void work() {
    leave_slice();
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_stopping_ || has_work(); });
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
      // begin() may have come in between: then nobody waits for this one.
      if (epoch == epoch_) {
        made_.emplace(number, std::move(made));
        changed_.notify_all();
      }
    }
  }

  // Plain loops and no operators of ATen's: its threads are for the training.
  Batch make(const Epoch& epoch, int64_t number) const {
    const int64_t total = std::min(
        options_.batch_size, dataset_->size() - number * options_.batch_size);
    const SampleRange own = samples_of(
        {options_.part.first, options_.part.last}, total, options_.part.shards);
    const int64_t first = number * options_.batch_size + own.first;
    const int64_t count = own.count();
    const int64_t elements =
        dataset_->channels() * dataset_->height() * dataset_->width();
    Batch batch;
    batch.inputs = torch::empty(
        {count, dataset_->channels(), dataset_->height(), dataset_->width()},
        torch::TensorOptions(torch::kFloat32)
            .memory_format(options_.channels_last
                               ? torch::MemoryFormat::ChannelsLast
                               : torch::MemoryFormat::Contiguous));
    batch.targets = torch::empty({count}, torch::kInt64);
    batch.total = total;
    auto* out = batch.inputs.data_ptr<float>();
    auto* targets = batch.targets.data_ptr<int64_t>();
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = epoch.order[static_cast<size_t>(first + i)];
      const Augmentation augmentation =
          options_.augment
              ? random_augmentation(options_.seed, epoch.number, index)
              : Augmentation{};
      writer_.write(
          dataset_->image(index), augmentation,
          std::span(out + i * elements, static_cast<size_t>(elements)));
      targets[i] = dataset_->label(index);
    }
    return batch;
  }

  const std::shared_ptr<const Dataset> dataset_;
  const LoaderOptions options_;
  const SampleWriter writer_;

  std::mutex mutex_;
  std::condition_variable changed_;  ///< anything below
  std::shared_ptr<const Epoch> epoch_;
  std::map<int64_t, Made> made_;
  int64_t next_to_make_ = 0;
  int64_t next_to_take_ = 0;
  bool is_stopping_ = false;
  std::vector<std::thread> workers_;
};

Loader::Loader(std::shared_ptr<const Dataset> dataset,
               const LoaderOptions& options) {
  check(dataset.get(), options);
  impl_ = std::make_unique<Impl>(std::move(dataset), options);
}

Loader::~Loader() = default;

void Loader::begin(int64_t epoch, int64_t first_batch) {
  if (first_batch < 0) {
    throw InvalidArgument("data", {.code = ErrorCode::kBadOption,
                                   .what = "can't begin there",
                                   .expected = "a batch of at least 0",
                                   .got = fmt::format("{}", first_batch)});
  }
  impl_->begin(epoch, first_batch);
}

std::optional<Batch> Loader::next() { return impl_->next(); }

int64_t Loader::batches() const { return impl_->batches(); }

}  // namespace lockstep::data
