#include "lockstep/train/evaluate.h"

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/control/worker_side.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/module/scatter_gather.h"
#include "lockstep/train/memory_format.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/run_settings.h"

namespace lockstep::train {
namespace {

namespace F = torch::nn::functional;

class EvalScope {
 public:
  explicit EvalScope(DataParallel<models::Model>& model)
      : model_(model), was_training_(model->module()->is_training()) {
    model_->eval();
  }
  ~EvalScope() { model_->train(was_training_); }
  EvalScope(const EvalScope&) = delete;
  EvalScope& operator=(const EvalScope&) = delete;

 private:
  DataParallel<models::Model>& model_;
  bool was_training_;
  torch::NoGradGuard no_grad_;
};

}  // namespace

TestReport evaluate(DataParallel<models::Model>& model, data::Loader& loader,
                    const std::function<bool()>& stop, const World& world) {
  const EvalScope scope(model);
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t samples = 0;
  bool is_stopped = false;
  loader.begin(0);
  while (const auto batch = loader.next()) {
    control::enter(control::Phase::kEvaluate);
    is_stopped = stop && stop();
    if (is_stopped) break;
    const int64_t count = batch->targets.size(0);
    if (count == 0) continue;  // the last batch may have none for this rank
    const auto logits = model->forward(batch->inputs);
    const auto targets = batch->targets.to(logits.device());
    loss_sum += F::cross_entropy(logits, targets).item<double>() *
                static_cast<double>(count);
    correct += count_correct(logits, targets);
    samples += count;
  }
  auto sums = torch::tensor(
      {loss_sum, static_cast<double>(correct), static_cast<double>(samples),
       static_cast<double>(is_stopped)},
      torch::kDouble);
  world.all_reduce(sums);
  const auto* sum = sums.const_data_ptr<double>();
  if (sum[3] > 0) return {};
  return {.loss = sum[0] / sum[2],
          .accuracy = sum[1] / sum[2],
          .samples = static_cast<int64_t>(sum[2])};
}

data::DataSpec data_of(const CheckpointInfo& info) {
  const auto setting = [&](const char* name) {
    if (!info.run) return std::string();
    const auto found = info.run->settings.find(name);
    return found == info.run->settings.end() ? "" : found->second;
  };
  data::DataSpec spec;
  spec.name = setting("data");
  spec.dir = setting(kDataDir);
  if (!spec.name.empty()) return spec;
  throw CheckpointError(
      {.code = ErrorCode::kUnknownDataset,
       .what = "the checkpoint does not say what it was trained on",
       .expected = "a checkpoint of `lockstep train`",
       .got = "one of a program of its own",
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
  data::LoaderOptions loader_options;
  loader_options.batch_size = options.batch_size;
  loader_options.workers = options.loader_workers;
  loader_options.channels_last = options.channels_last;
  data::Loader loader(data::open(options.data, data::Split::kTest),
                      loader_options);

  auto model = checkpoint.make([&] {
    return make_laid_out(report.info.model, options.channels_last,
                         models::Init::kNone);
  });
  checkpoint.load(*model);
  model->to(torch_device(options.devices.front()));
  DataParallel<models::Model> parallel(
      model, replica_factory(report.info.model, options.channels_last),
      options.devices);
  report.test = evaluate(parallel, loader);
  report.seconds = watch.seconds();
  return report;
}

}  // namespace lockstep::train
