// Measures what the checks of steps cost (docs/own-model.md): the first
// train_step() after a wrap, with and without them, the steps after it, and
// later steps that are checked again. Run with
// --benchmark_enable_random_interleaving=true
// --benchmark_repetitions=5.
#include <functional>
#include <memory>
#include <string>

#include <benchmark/benchmark.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/base/stopwatch.h"
#include "lockstep/lm/models/language_model.h"
#include "lockstep/models/model.h"
#include "lockstep/parallel/data_parallel.h"

namespace lockstep {
namespace {

using torch::Tensor;

torch::Tensor cross_entropy(const Tensor& logits, const Tensor& targets) {
  return torch::nn::functional::cross_entropy(
      logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

/// A module of type M, a function that makes it, and a batch for it.
template <class M>
struct Workload {
  std::function<std::shared_ptr<M>()> make;
  Tensor x, y;

  DataParallel<M> wrapped(bool verifies) const {
    return DataParallel<M>(make(), make, devices("2xcpu"),
                           DataParallelOptions().verify(
                               verifies ? Verify::kFirst : Verify::kNever));
  }
};

Workload<models::Model> images(const std::string& name, int64_t batch) {
  models::ModelSpec spec;
  spec.name = name;
  const bool is_flat = name == "mlp";
  return {.make = [spec] { return models::make(spec); },
          .x = is_flat ? torch::randn({batch, spec.in_features})
                       : torch::randn({batch, 3, 32, 32}),
          .y = torch::randint(spec.classes, {batch})};
}

Workload<models::LanguageModel> text() {
  const auto spec = models::language_spec("gpt-char");
  return {.make = [spec] { return models::make_language_model(spec); },
          .x = torch::randint(spec.vocabulary, {16, spec.context}),
          .y = torch::randint(spec.vocabulary, {16, spec.context})};
}

template <class M>
void first_step(benchmark::State& state, const Workload<M>& work,
                bool verifies) {
  for (auto _ : state) {
    const auto model = work.wrapped(verifies);
    torch::optim::SGD sgd(model->parameters(), 0.01);
    const Stopwatch watch;
    model->train_step(work.x, work.y, cross_entropy, sgd);
    state.SetIterationTime(watch.seconds());
  }
}

template <class M>
void later_step(benchmark::State& state, const Workload<M>& work,
                bool verifies) {
  const auto model = work.wrapped(verifies);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  model->train_step(work.x, work.y, cross_entropy, sgd);
  for (auto _ : state) model->train_step(work.x, work.y, cross_entropy, sgd);
}

/// A later step that is checked again (Verify::kDoubling).
template <class M>
void checked_again(benchmark::State& state, const Workload<M>& work) {
  const DataParallel<M> model(work.make(), work.make, devices("2xcpu"));
  torch::optim::SGD sgd(model->parameters(), 0.01);
  model->train_step(work.x, work.y, cross_entropy, sgd);
  for (auto _ : state) {
    model->verify_next_step();
    model->train_step(work.x, work.y, cross_entropy, sgd);
  }
}

template <class M>
void add(const std::string& name, const Workload<M>& work) {
  benchmark::RegisterBenchmark(
      ("later_step/" + name + "/checked_again").c_str(),
      [=](benchmark::State& state) { checked_again(state, work); })
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
  for (const bool verifies : {true, false}) {
    const std::string suffix = name + (verifies ? "/checked" : "/not_checked");
    benchmark::RegisterBenchmark(
        ("first_step/" + suffix).c_str(),
        [=](benchmark::State& state) { first_step(state, work, verifies); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(
        ("later_step/" + suffix).c_str(),
        [=](benchmark::State& state) { later_step(state, work, verifies); })
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

const bool kAdded = [] {
  add("mlp", images("mlp", 64));
  add("resnet18", images("resnet18", 16));
  add("gpt-char", text());
  return true;
}();

}  // namespace
}  // namespace lockstep
