// The parts of a run's state: what they are called in a checkpoint, and what is
// loaded if a checkpoint has other parts than the run.
#include "lockstep/train/state/state_list.h"

#include <gtest/gtest.h>

#include "lockstep/base/log.h"
#include "tests/base/temporary_folder.h"

namespace lockstep::training {
namespace {

/// A part with one number, "value".
class Number : public Stateful {
 public:
  explicit Number(double value) : value(value) {}
  OptimizerState state() const override {
    return {{"value", torch::tensor(value, torch::kFloat64)}};
  }
  void load_state(const OptimizerState& state) override {
    value = state.at("value").item<double>();
  }
  double value;
};

class Saved : public SavedState {
 public:
  explicit Saved(OptimizerState state) : state_(std::move(state)) {}
  void load(const NamedTensors&) const override {}
  OptimizerState optimizer_state() const override { return state_; }
  OptimizerState random_state() const override { return {}; }

 private:
  OptimizerState state_;
};

/// The parts that a run can have.
struct Parts {
  Number optimizer{1}, power_sgd{2}, first{3}, second{4}, scaler{5};
  StateList list{ProcessGroup()};

  Parts() {
    list.add(StateList::kOptimizer, optimizer);
    list.add(StateList::kPowerSgd, power_sgd, StateOf::kRank);
    list.add(std::string(StateList::kCallback) + "0.", first);
    list.add(std::string(StateList::kCallback) + "1.", second);
    list.add(StateList::kLossScaler, scaler);
  }
};

Resume resume_from(OptimizerState state) {
  Resume resume;
  resume.path = "a checkpoint";
  resume.state = std::make_shared<Saved>(std::move(state));
  return resume;
}

TEST(StateList, HasTheNamesOfTheFormat) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : Parts().list.state()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "callback.0.value", "callback.1.value",
                       "loss_scaler.value", "powersgd.rank.0.value", "value"}));
}

TEST(StateList, LoadsWhatItSaved) {
  Parts saved;
  saved.optimizer.value = 10;
  saved.power_sgd.value = 20;
  saved.second.value = 40;
  saved.scaler.value = 50;
  Parts loaded;
  loaded.list.load(resume_from(saved.list.state()), LoadCallbacks::kYes);
  EXPECT_EQ(loaded.optimizer.value, 10);
  EXPECT_EQ(loaded.power_sgd.value, 20);
  EXPECT_EQ(loaded.first.value, 3);
  EXPECT_EQ(loaded.second.value, 40);
  EXPECT_EQ(loaded.scaler.value, 50);
}

TEST(StateList, LeavesCallbacksAsTheyAreAfterASpike) {
  Parts saved;
  saved.optimizer.value = 10;
  saved.first.value = 30;
  Parts loaded;
  loaded.list.load(resume_from(saved.list.state()), LoadCallbacks::kNo);
  EXPECT_EQ(loaded.optimizer.value, 10);
  EXPECT_EQ(loaded.first.value, 3);
}

TEST(StateList, KeepsAPartThatACheckpointLacks) {
  OptimizerState state = Parts().list.state();
  state["value"] = torch::tensor(10.0, torch::kFloat64);
  state.erase("loss_scaler.value");
  state.erase("powersgd.rank.0.value");
  // The state of a spike guard, which this run does not have.
  state["spikes.losses"] = torch::zeros({3});
  Parts loaded;
  loaded.list.load(resume_from(state), LoadCallbacks::kYes);
  EXPECT_EQ(loaded.optimizer.value, 10);
  EXPECT_EQ(loaded.scaler.value, 5);
  EXPECT_EQ(loaded.power_sgd.value, 2);
}

/// Has no state before its first step.
class Average : public Stateful {
 public:
  OptimizerState state() const override { return state_; }
  void load_state(const OptimizerState& state) override { state_ = state; }

 private:
  OptimizerState state_;
};

TEST(StateList, LoadsStateThatACallbackMakesInItsFirstStep) {
  const OptimizerState saved = {{"callback.0.fc.weight", torch::ones({3})},
                                {"callback.0.steps", torch::tensor(7)}};
  for (const int ranks : {1, 2}) {
    spawn(ranks, [&](const ProcessGroup& world) {
      Average average;
      StateList list(world);
      list.add(std::string(StateList::kCallback) + "0.", average);
      Resume resume = resume_from(saved);
      // Only the last rank can read the state.
      resume.root = ranks - 1;
      if (world.rank() != resume.root) resume.state = nullptr;
      list.load(resume, LoadCallbacks::kYes);
      const OptimizerState state = list.state();
      ASSERT_EQ(state.size(), saved.size());
      for (const auto& [name, tensor] : saved) {
        EXPECT_TRUE(state.at(name).equal(tensor)) << name;
      }
    });
  }
}

TEST(StateList, WarnsOfStateThatNoCallbackTakes) {
  Parts loaded;
  OptimizerState state = Parts().list.state();
  state["callback.0.more"] = torch::zeros({3});
  state["callback.7.value"] = torch::zeros({3});
  const LogCapture log;
  loaded.list.load(resume_from(Parts().list.state()), LoadCallbacks::kYes);
  EXPECT_EQ(log.text(), "");
  loaded.list.load(resume_from(state), LoadCallbacks::kNo);
  EXPECT_EQ(log.text(), "");
  loaded.list.load(resume_from(state), LoadCallbacks::kYes);
  EXPECT_PRED2(contains, log.text(),
               "2 tensors of the state of callbacks in the checkpoint were not "
               "loaded: callback.0.more, callback.7.value");
}

}  // namespace
}  // namespace lockstep::training
