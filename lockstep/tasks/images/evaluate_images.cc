#include "lockstep/tasks/images/evaluate_images.h"

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/data/image_source.h"
#include "lockstep/data/loader.h"
#include "lockstep/device/autocast.h"
#include "lockstep/device/memory.h"
#include "lockstep/models/model_settings.h"
#include "lockstep/parallel/engine.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/tasks/images/image_task.h"
#include "lockstep/tasks/images/memory_format.h"
#include "lockstep/train/state/run_settings.h"
#include "lockstep/train/step/evaluate.h"

namespace lockstep::tasks {

data::DataSpec data_of(const CheckpointInfo& info) {
  data::DataSpec spec;
  spec.name = training::setting_of(info, "data");
  spec.dir = training::setting_of(info, training::kDataDir);
  if (!training::setting_of(info, "image_size").empty()) {
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
  Engine engine(module_of(model, spec, options.channels_last), options.devices,
                DataParallelOptions());
  const AutocastScope precision(torch_device(options.devices.front()).type(),
                                training::autocast_type(options.precision));
  int64_t done = 0;
  report.test = training::evaluate(engine, task, loader, [&] {
    if (options.on_batch) options.on_batch(done++, loader.batches());
    return false;
  });
  report.seconds = watch.seconds();
  return report;
}

}  // namespace lockstep::tasks
