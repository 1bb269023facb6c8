// Tier: nightly, by case. Language models.
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/lm/models/hugging_face.h"
#include "lockstep/lm/task/text_task.h"
#include "lockstep/train/run/run_training.h"
#include "tests/base/temporary_folder.h"
#include "tests/checkpoint/python.h"

namespace lockstep::tasks {
namespace {

constexpr int kSteps = 50;

/// Returns words of a made-up language, which a model can learn.
std::string some_text() {
  const std::vector<std::string> words = {"la", "tuna", "mi", "ro",
                                          "ke", "sola", "vi"};
  std::string text;
  uint64_t state = 1;
  for (int i = 0; i < 6000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    text += words[(state >> 33) % words.size()] + (i % 9 == 8 ? ".\n" : " ");
  }
  return text;
}

class LossOfSteps : public training::Callback {
 public:
  void after_step(const training::RunState&,
                  const training::Metrics& metrics) override {
    losses.push_back(metrics.at("loss"));
  }
  std::vector<double> losses;
};

/// A TextTask that records the batches and the initial weights.
class RecordedTask : public TextTask {
 public:
  RecordedTask(const TextOptions& options, std::string folder)
      : TextTask(options), folder_(std::move(folder)) {}

  ModuleSource make_model(const torch::Device& device) override {
    auto module = TextTask::make_model(device);
    save_hugging_face(
        folder_, dynamic_cast<models::LanguageModel&>(*module.read().module));
    return module;
  }
  data::Batch prepare(data::Batch batch) const override {
    inputs.push_back(batch.data);
    targets.push_back(batch.target);
    return TextTask::prepare(std::move(batch));
  }
  std::vector<std::shared_ptr<training::Callback>> callbacks() override {
    return {losses};
  }

  const std::shared_ptr<LossOfSteps> losses = std::make_shared<LossOfSteps>();
  mutable std::vector<torch::Tensor> inputs;
  mutable std::vector<torch::Tensor> targets;

 private:
  std::string folder_;
};

constexpr const char* kTransformers =
    LOCKSTEP_SOURCE_DIR "/tests/checkpoint/parity/transformers_models.py";

/// Trains `options.model` here and with transformers, from the weights in
/// `init_from` if it is given.
void expect_same_curve(const TemporaryFolder& folder, TextOptions options,
                       const std::string& init_from) {
  write_text(folder.path("text.txt"), some_text());
  options.data.file = folder.path("text.txt");
  options.optimizer = {.optimizer = OptimizerKind::kAdamW,
                       .lr = 1e-3,
                       .weight_decay = 0.1,
                       .beta2 = 0.99,
                       .decays_matrices_alone = true,
                       .schedule = ScheduleKind::kConstant};
  RecordedTask task(options, folder.path("model"));
  training::TrainOptions run;
  run.strategy(training::Strategy::kDataParallel);
  run.devices(devices("2xcpu"));
  run.batch_size(12);
  run.epochs(0);
  run.max_steps(kSteps);
  run.clip_grad_norm(1);
  run.loading().drop_last(true);
  run.evaluation().enabled(false);
  run.log().progress(false);
  run.init_from(init_from);
  training::run_training(task, run);

  if (!init_from.empty()) {
    std::filesystem::remove_all(folder.path("model"));
    std::filesystem::copy(init_from, folder.path("model"));
  }
  write_safetensors(folder.path("batches.safetensors"),
                    {.tensors = {{"inputs", torch::stack(task.inputs)},
                                 {"targets", torch::stack(task.targets)}}});
  write_text(
      folder.path("options.json"),
      nlohmann::json{
          {"lr", 1e-3}, {"weight_decay", 0.1}, {"beta2", 0.99}, {"clip", 1.0}}
          .dump());
  std::istringstream lines(
      run_python_file(kTransformers, {"train", folder.path()}));
  std::vector<double> expected;
  for (std::string line; std::getline(lines, line);) {
    // transformers shows a progress bar while it loads.
    if (!line.empty() && line.find_first_not_of("0123456789.") == line.npos) {
      expected.push_back(std::stod(line));
    }
  }
  ASSERT_EQ(expected.size(), size_t{kSteps});
  ASSERT_EQ(task.losses->losses.size(), size_t{kSteps});
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(task.losses->losses[i], expected[i], 1e-3) << i;
  }
  EXPECT_NEAR(task.losses->losses[0], expected[0], 1e-5);
  // The model has learned something.
  EXPECT_LT(expected.back(), 0.75 * expected.front());
}

// Both start from the same weights and use the same batches, clipped gradients
// and AdamW with two groups. Both compute in float32: after 50 steps, rounding
// errors have grown to about 1e-5 of the loss. 1e-3 leaves room for other
// processors.
TEST(TextCurve, IsThatOfPyTorchAndTransformers) {
  if (!python_has("transformers")) {
    GTEST_SKIP() << "the Python package transformers is not there";
  }
  const TemporaryFolder folder;
  TextOptions options;
  options.model = models::language_spec("gpt-char");
  expect_same_curve(folder, options, "");
}

// The config says that the head is tied, but the file has a different one. The
// sizes don't belong to a model with a name.
TEST(TextCurve, IsThatOfTransformersFromAHeadThatDiffersFromTheTable) {
  if (!python_has("transformers")) {
    GTEST_SKIP() << "the Python package transformers is not there";
  }
  const TemporaryFolder oracle;
  run_python_file(kTransformers, {"make", oracle.path()});
  const std::string own_head = oracle.path("gpt2_own_head");
  TextOptions options;
  options.saved = find_saved_model(own_head);
  options.model = choose_model({}, options.saved);
  ASSERT_FALSE(options.model.is_tied);
  const TemporaryFolder folder;
  expect_same_curve(folder, options, own_head);
}

}  // namespace
}  // namespace lockstep::tasks
