#include "lockstep/train/loading.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/chunk.h"

namespace lockstep::train {
namespace {

data::LoaderOptions loader_options(const TrainOptions& options,
                                   const Plan& plan, data::Split split) {
  data::LoaderOptions loader;
  const ShardRange own =
      shards_of_worker(options.world.rank(), options.world.size(), plan.shards);
  if (options.world.size() > 1) {
    loader.part = {.shards = plan.shards, .first = own.first, .last = own.last};
  }
  loader.batch_size = options.batch_size;
  loader.channels_last = plan.channels_last;
  loader.workers = options.loader_workers;
  if (split == data::Split::kTest) {
    // Without gradients there is room for more than a training batch.
    loader.batch_size = std::max<int64_t>(options.batch_size, 250);
    return loader;
  }
  loader.shuffle = true;
  loader.augment = options.augment;
  loader.seed = options.seed;
  return loader;
}

}  // namespace

models::ModelSpec fit(models::ModelSpec model, const data::Dataset& dataset) {
  model.classes = dataset.classes();
  model.in_features = dataset.channels() * dataset.height() * dataset.width();
  return model;
}

std::unique_ptr<data::Loader> make_loader(
    const TrainOptions& options, const Plan& plan, data::Split split,
    std::shared_ptr<const data::Dataset> dataset) {
  return std::make_unique<data::Loader>(std::move(dataset),
                                        loader_options(options, plan, split));
}

}  // namespace lockstep::train
