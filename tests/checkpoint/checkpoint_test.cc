#include "lockstep/checkpoint/checkpoint.h"

#include <chrono>
#include <filesystem>
#include <random>
#include <signal.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/atomic_folder.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/checkpoint/folder.h"
#include "lockstep/checkpoint/random_state.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/writer.h"
#include "lockstep/models/model.h"
#include "tests/base/expect_problem.h"
#include "tests/base/temporary_folder.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class Net : public models::Model {
 public:
  explicit Net(int64_t width = 5) {
    fc = register_module("fc", torch::nn::Linear(3, width));
    bn = register_module("bn", torch::nn::BatchNorm1d(width));
  }
  torch::Tensor forward(const torch::Tensor& x) override { return bn(fc(x)); }

  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d bn{nullptr};
};

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Net& net) {
  return std::make_unique<torch::optim::SGD>(
      net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct Training {
  Net net;
  std::unique_ptr<torch::optim::Optimizer> optimizer = optimizer_of(net);

  void step() {
    torch::Tensor loss = net.forward(torch::randn({8, 3})).square().sum();
    optimizer->zero_grad();
    (loss + net.fc->weight.sum()).backward();
    optimizer->step();
  }

  std::string save(const std::string& dir, int64_t at, int keep = 3) {
    return save_checkpoint(dir, net, *optimizer,
                           {.model = {{"name", "mlp"}, {"width", "77"}},
                            .step = at,
                            .epoch = at / 2,
                            .parameter_sha256 = parameter_digest(net)},
                           keep);
  }
};

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Checkpoint, HoldsAllThatMakesTheNextStepTheSame) {
  const TemporaryFolder folder;
  Training first, second;
  first.step();
  const std::string path = first.save(folder.path("a/b"), 30);
  EXPECT_EQ(path, folder.path("a/b/step-00000030"));

  const CheckpointInfo info = read_checkpoint_info(path);
  EXPECT_EQ(info.model, (Settings{{"name", "mlp"}, {"width", "77"}}));
  EXPECT_EQ(info.step, 30);
  EXPECT_EQ(info.epoch, 15);

  load_checkpoint(path, second.net, second.optimizer.get());
  EXPECT_EQ(parameter_digest(second.net), info.parameter_sha256);
  for (Training* run : {&first, &second}) {
    torch::manual_seed(3);
    run->step();
  }
  EXPECT_EQ(parameter_digest(second.net), parameter_digest(first.net));
}

TEST(Checkpoint, ReplacesOneOfTheSameStep) {
  const TemporaryFolder folder;
  Training run;
  run.save(folder.path(), 7);
  run.step();
  const std::string path = run.save(folder.path(), 7);
  EXPECT_EQ(read_checkpoint_info(path).parameter_sha256,
            parameter_digest(run.net));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"step-00000007"});
}

TEST(Checkpoint, KeepsTheNewestAndWhatIsNotItsOwn) {
  const TemporaryFolder folder;
  Training run;
  write_text(folder.path("run.json"), "{}");
  fs::create_directory(folder.path("step-best"));
  for (const int64_t step : {10, 20, 30}) run.save(folder.path(), step, 2);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"run.json", "step-00000020",
                                      "step-00000030", "step-best"}));
  EXPECT_EQ(find_checkpoint(folder.path()), folder.path("step-00000030"));
}

TEST(Checkpoint, IsNotPrunedForLaterOnes) {
  const TemporaryFolder folder;
  Training run;
  run.save(folder.path(), 100);
  run.save(folder.path(), 101);
  for (const int64_t step : {5, 6, 7}) run.save(folder.path(), step, 2);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"step-00000006", "step-00000007",
                                      "step-00000100", "step-00000101"}));
}

TEST(Checkpoint, IsFoundWhenItIsNamedItself) {
  const TemporaryFolder folder;
  const std::string path = Training().save(folder.path(), 1);
  EXPECT_EQ(find_checkpoint(path), path);
}

TEST(Checkpoint, OfNothingIsAnErrorThatSaysWhatWasSought) {
  const TemporaryFolder folder;
  expect_problem(error_of<CheckpointError>(
                     [&] { find_checkpoint(folder.path("missing")); }),
                 ErrorCode::kCheckpointMissing, {folder.path("missing")});
  expect_problem(
      error_of<CheckpointError>([&] { find_checkpoint(folder.path()); }),
      ErrorCode::kCheckpointMissing,
      {folder.path(), "step-*", "manifest.json"});
}

TEST(Checkpoint, OfANewerVersionIsNotCalledMissing) {
  const TemporaryFolder folder;
  const std::string path = checkpoint_path(folder.path(), 10);
  fs::create_directories(path);
  write_text(path + "/manifest.json", R"({"lockstep_checkpoint": 4})");
  for (const std::string& dir : {folder.path(), path}) {
    expect_problem(error_of<CheckpointError>([&] { find_checkpoint(dir); }),
                   ErrorCode::kCheckpointVersion, {path, "update Lockstep"});
  }
}

TEST(Checkpoint, HoldsTheValuesOfItsStepThoughTrainingGoesOn) {
  const TemporaryFolder folder;
  CheckpointWriter writer(folder.path(), /*keep=*/2);
  torch::Tensor weight = torch::zeros({1 << 20});
  torch::Tensor momentum = torch::zeros({1 << 20});
  for (int step = 1; step <= 3; ++step) {
    writer.save({.info = {.step = step},
                 .model = {{"weight", weight}},
                 .parameters = 1,
                 .optimizer = {{"momentum", momentum}}});
    weight.fill_(step);  // at once, while the checkpoint is written
    momentum.fill_(step);
    writer.finish();
    for (const char* const file : {"model", "optimizer"}) {
      const auto saved = read_safetensors(
          fmt::format("{}/{}.safetensors", writer.last(), file));
      EXPECT_TRUE((saved.tensors.at(0).second == step - 1).all().item<bool>())
          << file << " of step " << step;
    }
  }
}

TEST(Checkpoint, IsThereOnceTheFirstSaveIsDone) {
  const TemporaryFolder folder;
  EXPECT_FALSE(has_checkpoint(folder.path("missing")));
  EXPECT_FALSE(has_checkpoint(folder.path()));
  {
    // The files that a first save writes before it is complete or killed.
    const AtomicFolder unfinished(checkpoint_path(folder.path(), 10));
    write_text(unfinished.temporary() + "/model.safetensors", "half of it");
    EXPECT_FALSE(has_checkpoint(folder.path()));
  }
  const std::string path = Training().save(folder.path(), 10);
  EXPECT_TRUE(has_checkpoint(folder.path()));
  EXPECT_TRUE(has_checkpoint(path));
}

TEST(Checkpoint, IsThereThoughItIsDamaged) {
  const TemporaryFolder folder;
  const std::string path = Training().save(folder.path(), 10);
  fs::remove(path + "/manifest.json");
  // The caller of open_checkpoint() gets the error.
  EXPECT_TRUE(has_checkpoint(folder.path()));
}

struct Damage {
  const char* name;
  void (*inflict)(const std::string& checkpoint);
  const char* says;
};

void PrintTo(const Damage& damage, std::ostream* out) { *out << damage.name; }

class DamagedCheckpoint : public testing::TestWithParam<Damage> {};

TEST_P(DamagedCheckpoint, IsSkippedWithAWarningForTheOneBefore) {
  const TemporaryFolder folder;
  Training run;
  const std::string good = run.save(folder.path(), 10);
  const std::string bad = run.save(folder.path(), 20);
  GetParam().inflict(bad);
  EXPECT_PRED2(contains, error_of<CheckpointError>([&] {
                 load_checkpoint(bad, run.net);
               }),
               GetParam().says);
  const LogCapture log;
  EXPECT_EQ(find_checkpoint(folder.path()), good);
  EXPECT_PRED2(contains, log.text(), bad + " is skipped");
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, DamagedCheckpoint,
    testing::Values(
        Damage{"Truncated",
               [](const std::string& path) {
                 fs::resize_file(path + "/model.safetensors", 100);
               },
               "got 100"},
        Damage{"BitFlipped",
               [](const std::string& path) {
                 std::string bytes = content_of(path + "/model.safetensors");
                 bytes.back() = static_cast<char>(bytes.back() ^ 1);
                 write_text(path + "/model.safetensors", bytes);
               },
               "model.safetensors is not as it was written; expected XXH128"},
        Damage{"OptimizerGone",
               [](const std::string& path) {
                 fs::remove(path + "/optimizer.safetensors");
               },
               "optimizer.safetensors"},
        Damage{"ManifestGone",
               [](const std::string& path) {
                 fs::remove(path + "/manifest.json");
               },
               "not a complete checkpoint"},
        Damage{"ManifestCut",
               [](const std::string& path) {
                 fs::resize_file(path + "/manifest.json", 50);
               },
               "manifest.json holds what is not JSON"},
        Damage{"ManifestOfOtherTypes",
               [](const std::string& path) {
                 write_text(path + "/manifest.json",
                            R"({"lockstep_checkpoint": "one"})");
               },
               "manifest.json is damaged"}),
    [](const auto& info) { return info.param.name; });

TEST(Checkpoint, OfAnotherModelNamesWhatDoesNotFitAndChangesNothing) {
  const TemporaryFolder folder;
  const std::string path = Training().save(folder.path(), 1);
  Net wider(6);
  const auto optimizer = optimizer_of(wider);
  const std::string before = parameter_digest(wider);
  const std::string message = error_of<CheckpointError>(
      [&] { load_checkpoint(path, wider, optimizer.get()); });
  expect_problem(
      message, ErrorCode::kStateMismatch,
      {path + "/model.safetensors", "fc.weight", "[6, 3]", "[5, 3]"});
  EXPECT_EQ(parameter_digest(wider), before);
}

TEST(Checkpoint, SweepsWhatDeadRunsLeftButNotWhatALivingOneBuilds) {
  const TemporaryFolder folder;
  const std::string dead = folder.path(".step-00000009.unfinished-1-0");
  const std::string strange = folder.path(".step-00000009.backup");
  fs::create_directory(dead);
  fs::create_directory(strange);
  write_text(dead + "/model.safetensors", "half");
  const AtomicFolder living(folder.path("step-00000011"));
  Training().save(folder.path(), 10);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(strange));
  EXPECT_TRUE(fs::exists(living.temporary()));
}

// Saves checkpoints from `step` on until it is killed.
[[noreturn]] void save_forever(const std::string& dir, int64_t step) {
  Training run;
  while (true) {
    {
      const torch::NoGradGuard no_grad;
      run.net.fc->bias.fill_(static_cast<double>(step));
    }
    run.save(dir, step++, 2);
  }
}

TEST(Checkpoint, IsWholeWheneverTheRunIsKilled) {
  constexpr int kKills = 40;
  const TemporaryFolder folder;
  std::mt19937 random(17);
  std::uniform_real_distribution<double> moment(0, 3);
  int64_t newest = 0;
  Training().save(folder.path(), newest);
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) save_forever(folder.path(), newest + 1);
    const Stopwatch waited;
    while (list_checkpoints(folder.path()).front().step == newest) {
      ASSERT_LT(waited.seconds(), 60) << "the child saves nothing";
      std::this_thread::yield();
    }
    // This doesn't wait for anything. The moment of the kill is random. In
    // three times the time that the child took to start and save, it can save
    // again, however busy the machine is.
    std::this_thread::sleep_for(
        std::chrono::duration<double>(moment(random) * waited.seconds()));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);

    for (const std::string& name : names_in(folder.path())) {
      if (name.starts_with("step-")) {
        EXPECT_NO_THROW(read_checkpoint_info(folder.path(name))) << name;
      }
    }
    const std::string path = find_checkpoint(folder.path());
    const CheckpointInfo info = read_checkpoint_info(path);
    EXPECT_GT(info.step, newest);
    newest = info.step;
    Training run;
    load_checkpoint(path, run.net, run.optimizer.get());
    EXPECT_EQ(parameter_digest(run.net), info.parameter_sha256);
  }
  EXPECT_GT(newest, kKills) << "no child could save twice";
  Training().save(folder.path(), newest + 1, 2);
  EXPECT_EQ(names_in(folder.path()).size(), 2u) << "leftovers stay";
}

TEST(RandomState, IsNotSetFromACheckpointThatLacksIt) {
  const auto state = random_state({});
  torch::rand({10});
  set_random_state(state, {});
  EXPECT_TRUE(random_state({}).at("cpu").equal(state.at("cpu")));
  expect_problem(error_of<CheckpointError>([] { set_random_state({}, {}); }),
                 ErrorCode::kStateMismatch, {"cpu"});
}

}  // namespace
}  // namespace lockstep
