// Times the training steps of a module that Lockstep does not know:
//
//     own_modules --model unet --mode dp-step
//
// With a mode of ddp, `lockstep run --nproc-per-node 2 --` goes before it. The
// modes are plain (LibTorch without Lockstep), and DataParallel (dp) or
// DistributedDataParallel (ddp) with the loop that users write or with
// train_step(). Prints one line of JSON: the median time of a step, the loss of
// the last step and the digest of the parameters. peer.py does the same in
// Python, and run.py runs both.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/own_modules/models.h"
#include "lockstep/lockstep.h"

namespace own_modules {
namespace {

struct Options {
  std::string model, mode;
  int steps = 20, warmup = 5;
  uint64_t seed = 0;
  bool is_fused = false;
};

/// Reads the clock before and after each step, and keeps the times.
class Times {
 public:
  explicit Times(const Options& options) : options_(options) {}

  /// Makes all steps, and calls `after_warmup` before the first one that is
  /// timed. Returns the loss of the last step.
  double run(
      const std::function<double()>& step,
      const std::function<void()>& after_warmup = [] {}) {
    for (int i = 0; i < options_.warmup; ++i) step();
    after_warmup();
    double loss = 0;
    for (int i = 0; i < options_.steps; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      loss = step();
      const std::chrono::duration<double> time =
          std::chrono::steady_clock::now() - begin;
      seconds_.push_back(time.count());
    }
    return loss;
  }

  void print(double loss, const torch::nn::Module& net) {
    std::sort(seconds_.begin(), seconds_.end());
    std::printf(
        "{\"model\": \"%s\", \"mode\": \"%s\", \"median_s\": %.9g, "
        "\"min_s\": %.9g, \"loss\": %.9g, \"parameter_sha256\": \"%s\"}\n",
        options_.model.c_str(), options_.mode.c_str(),
        seconds_[seconds_.size() / 2], seconds_.front(), loss,
        lockstep::parameter_digest(net).c_str());
  }

 private:
  const Options& options_;
  std::vector<double> seconds_;
};

Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  return nn::functional::cross_entropy(logits, targets);
}

/// Returns the optimizer of a model. Sparse gradients allow no momentum.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& model, const std::vector<Tensor>& parameters) {
  if (model == "transformer") {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-3));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.01).momentum(
                      model == "lstm-sparse" ? 0 : 0.9));
}

/// Makes a step as users write it. Returns its loss.
template <class Model, class Optimizer>
double loop_step(Model& model, const Batch& batch, Optimizer& optimizer) {
  optimizer.zero_grad();
  const Tensor loss =
      cross_entropy(model->forward(batch.inputs), batch.targets);
  loss.backward();
  optimizer.step();
  return loss.template item<double>();
}

/// Returns a function that makes a step in the way that `options` name. The
/// arguments must outlive it.
template <class Model>
std::function<double()> make_step(const Options& options, Model& model,
                                  const Batch& batch,
                                  torch::optim::Optimizer& optimizer) {
  if (options.mode.ends_with("-step")) {
    return [&] {
      return model
          ->train_step(batch.inputs, batch.targets, cross_entropy, optimizer)
          .loss;
    };
  }
  if (options.is_fused) {
    const auto fused = std::make_shared<lockstep::optim::FusedOptimizer>(
        lockstep::optim::fuse(optimizer, model));
    return [&, fused] { return loop_step(model, batch, *fused); };
  }
  return [&] { return loop_step(model, batch, optimizer); };
}

template <class M>
void run_plain(const Options& options, const std::shared_ptr<M>& net,
               const Batch& batch, int cores) {
  at::set_num_threads(cores);
  const auto optimizer = make_optimizer(options.model, net->parameters());
  Times times(options);
  const double loss =
      times.run([&] { return loop_step(net, batch, *optimizer); });
  times.print(loss, *net);
}

template <class M>
void run_dp(const Options& options, const std::shared_ptr<M>& net,
            const Batch& batch, int cores) {
  lockstep::DataParallel<M> model(
      net, lockstep::devices(std::to_string(cores) + "xcpu"));
  const auto optimizer = make_optimizer(options.model, model->parameters());
  Times times(options);
  const double loss = times.run(make_step(options, model, batch, *optimizer));
  times.print(loss, *net);
}

template <class M>
void run_ddp(const Options& options, const std::shared_ptr<M>& net,
             const Batch& batch) {
  const auto world = lockstep::init();
  lockstep::DistributedDataParallel<M> model(net, world);
  const auto optimizer = make_optimizer(options.model, model->parameters());
  const Batch mine = batch.part(world.rank(), world.size());
  Times times(options);
  if (options.mode == "ddp-loop") {
    // Each rank draws its own numbers for dropout.
    torch::manual_seed(options.seed + world.rank());
  }
  double loss = times.run(make_step(options, model, mine, *optimizer),
                          [&] { world.barrier(); });
  if (options.mode == "ddp-loop") {
    const Tensor sum = torch::tensor({loss}, torch::kDouble);
    world.all_reduce(sum);
    loss = sum.item<double>() / world.size();
  }
  if (world.rank() == 0) times.print(loss, *net);
}

template <class M>
void run(const Options& options, const std::shared_ptr<M>& net) {
  const Batch batch = M::batch();
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (options.mode == "plain") {
    run_plain(options, net, batch, cores);
  } else if (options.mode.starts_with("dp-")) {
    run_dp(options, net, batch, cores);
  } else {
    run_ddp(options, net, batch);
  }
}

void run(const Options& options) {
  torch::manual_seed(options.seed);
  if (options.model == "transformer") {
    run(options, std::make_shared<Transformer>());
  } else if (options.model == "unet") {
    run(options, std::make_shared<UNet>());
  } else {
    run(options, std::make_shared<Lstm>(options.model == "lstm-sparse"));
  }
}

}  // namespace
}  // namespace own_modules

int main(int argc, char** argv) {
  own_modules::Options options;
  CLI::App app("Times the training steps of a module of torch::nn.");
  app.add_option("--model", options.model)
      ->required()
      ->check(CLI::IsMember({"transformer", "unet", "lstm", "lstm-sparse"}));
  app.add_option("--mode", options.mode)
      ->required()
      ->check(CLI::IsMember(
          {"plain", "dp-loop", "dp-step", "ddp-loop", "ddp-step"}));
  app.add_option("--steps", options.steps, "steps that are timed")
      ->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps before them")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed);
  app.add_flag("--fused", options.is_fused,
               "optim::fuse() in dp-loop and ddp-loop");
  CLI11_PARSE(app, argc, argv);
  try {
    own_modules::run(options);
  } catch (const std::exception& error) {
    lockstep::launch::record_error(error);
    std::fprintf(stderr, "%s\n", error.what());
    return lockstep::exit_code_of(error);
  }
  return lockstep::kExitDone;
}
