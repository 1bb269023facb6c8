#include "lockstep/tasks/images/train_images.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/loader.h"
#include "lockstep/device/memory.h"
#include "lockstep/models/model_settings.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/parallel/parallel_module.h"
#include "lockstep/tasks/images/memory_format.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/step/evaluate.h"

namespace lockstep::tasks {

train::RunReport train_images(const ImageRun& run,
                              const train::RunContext& context) {
  ImageTask task(run.images);
  return train::run_training(task, run.train, context);
}

data::DataSpec data_of(const CheckpointInfo& info) {
  const auto setting = [&](const char* name) {
    if (!info.run) return std::string();
    const auto found = info.run->settings.find(name);
    return found == info.run->settings.end() ? "" : found->second;
  };
  data::DataSpec spec;
  spec.name = setting("data");
  spec.dir = setting(train::kDataDir);
  const std::string image_size = setting("image_size");
  if (!image_size.empty()) {
    spec.image_size = models::setting_size(info.run->settings, "image_size");
  }
  if (!spec.name.empty()) return spec;
  throw CheckpointError(
      {.code = ErrorCode::kBadOption,
       .what = "the checkpoint does not say what it was trained on",
       .expected = "a checkpoint of `lockstep train`",
       .got = "one that another program saved",
       .fix = "name the dataset: --data synthetic, or --data cifar10 and "
              "--data-dir"});
}

EvalReport evaluate_checkpoint(const EvalOptions& options) {
  install_accounting_allocator();
  const Stopwatch watch;
  EvalReport report;
  const CheckpointReader checkpoint = open_checkpoint(options.checkpoint);
  report.checkpoint = checkpoint.path();
  report.info = checkpoint.info();
  const auto source = std::make_shared<data::ImageSource>(
      data::open(options.data, data::Split::kTest),
      data::ImageOptions().channels_last(options.channels_last));
  data::Loader loader(source, data::LoaderOptions()
                                  .batch_size(options.batch_size)
                                  .workers(options.loader_workers));

  models::ModelSpec spec;
  const auto model = checkpoint.make([&] {
    spec = models::spec_from_settings(report.info.model);
    return make_laid_out(spec, options.channels_last, models::Init::kNone);
  });
  checkpoint.load(*model);
  model->to(torch_device(options.devices.front()));
  const ImageTask task({.model = spec, .data = options.data});
  Engine engine(engine_module<models::Model>(
                    model, replica_factory(spec, options.channels_last)),
                options.devices, DataParallelOptions());
  report.test = train::evaluate(engine, task, loader);
  report.seconds = watch.seconds();
  return report;
}

}  // namespace lockstep::tasks
