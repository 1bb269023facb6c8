// Memory that runs out, kernels that fail and a slow device, in the middle of
// DataParallel.
// Tier: full. It starts processes.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/optim/torch_state.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/functional.h"
#include "tests/accelerator/nets.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim {
namespace data_parallel_faults {

using torch::Tensor;

class DataParallelFaults : public testing::Test {
 protected:
  void TearDown() override {
    set_faults({});
    forget_errors();
  }
};

/// A net on some devices with its optimizer. The batch of a step depends only
/// on the number of the step.
struct Training {
  explicit Training(const std::string& list,
                    const DataParallelOptions& options = wrap_options())
      : devices(devices_of(list)) {
    torch::manual_seed(3);
    net = TokenNet();
    lockstep::to(*net, devices.front());
    model = DataParallel(net, devices,
                         DataParallelOptions(options).divide_state(true));
    optimizer = std::make_unique<torch::optim::AdamW>(
        optim::unique(net->parameters()), 0.05);
  }

  Batch batch(int64_t step) const {
    torch::manual_seed(static_cast<uint64_t>(100 + step));
    return on(devices.front(), texts());
  }
  void step(int64_t step) const {
    const Batch now = batch(step);
    model->set_step(step);
    model->train_step(now.x, now.y, &class_loss, *optimizer);
  }
  /// Makes a step of a loop without train_step(), up to its update.
  void backward(int64_t step) const {
    const Batch now = batch(step);
    model->set_step(step);
    class_loss(model->forward(now.x), now.y).backward();
  }
  std::string digest() const { return digest_of(*net); }

  std::vector<Device> devices;
  TokenNet net{nullptr};
  DataParallel<TokenNetImpl> model{nullptr};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

/// Returns the text of the error that `run` throws, or "".
template <class Run>
std::string error_of(const Run& run) {
  try {
    run();
  } catch (const std::exception& error) {
    return text_of(error);
  }
  return "";
}

/// Returns the next n to try: each one at first, then fewer.
int64_t after(int64_t n) { return n + 1 + n / 6; }

/// Repeats a step until it works, with allocation 1 failing at first, then
/// `next(1)`, and so on. A failure must change nothing.
template <class Next>
void step_without_memory(const Training& tried, int64_t step, const Next& next,
                         int& failures) {
  const std::string before = tried.digest();
  failures = 0;
  for (int64_t n = 1;; n = next(n)) {
    Faults faults;
    const Batch batch = tried.batch(step);
    tried.model->set_step(step);
    faults.failing_allocation = n;
    set_faults(faults);
    const std::string error = error_of([&] {
      tried.model->train_step(batch.x, batch.y, &class_loss, *tried.optimizer);
    });
    set_faults({});
    if (error.empty()) return;
    ++failures;
    EXPECT_NE(error.find("is out of memory"), std::string::npos) << error;
    ASSERT_EQ(tried.digest(), before) << "allocation " << n << ": " << error;
  }
}

TEST_F(DataParallelFaults, AStepWithoutMemoryChangesNothingAndCanBeRepeated) {
  const Training plain("4xcpu");
  plain.step(0);
  plain.step(1);
  // A loss that can't be checked for want of memory would end no step.
  const Training tried("3xsim", wrap_options().verify(Verify::kFirst));
  tried.step(0);
  int failures = 0;
  ASSERT_NO_FATAL_FAILURE(step_without_memory(tried, 1, after, failures));
  EXPECT_GT(failures, 20);
  EXPECT_EQ(tried.digest(), plain.digest());
}

// The first step allocates the optimizer's state.
TEST_F(DataParallelFaults, AFirstStepWithoutMemoryChangesNothing) {
  const Training plain("4xcpu");
  plain.step(0);
  const Training tried("3xsim");
  const auto next = [](int64_t n) { return n + (n < 100 ? 1 : n / 6); };
  int failures = 0;
  ASSERT_NO_FATAL_FAILURE(step_without_memory(tried, 0, next, failures));
  EXPECT_GT(failures, 50);
  EXPECT_EQ(tried.digest(), plain.digest());
  // No attempt counted as a step of the optimizer.
  tried.model->unshare_parameters();
  int64_t steps = 0;
  for (const auto& [name, tensor] : optim::state_dict(*tried.optimizer)) {
    if (!name.starts_with("step.")) continue;
    steps = std::max(steps, tensor.item<int64_t>());
  }
  EXPECT_EQ(steps, 1);
}

// It could stop half-way.
TEST_F(DataParallelFaults, AnUpdateAllocatesNothing) {
  const Training tried("3xsim", wrap_options().on_phase([](StepPhase phase) {
    Faults faults;
    faults.failing_allocation = phase == StepPhase::kUpdate ? 1 : 0;
    set_faults(faults);
  }));
  for (const int step : {0, 1}) {
    const std::string error = error_of([&] { tried.step(step); });
    set_faults({});
    EXPECT_EQ(error, "");
  }
}

TEST_F(DataParallelFaults, ALoopWithoutMemoryCanGoOn) {
  const Training tried("3xsim");
  tried.step(0);
  tried.backward(1);
  std::vector<Tensor> expected;
  for (const Tensor& parameter : tried.net->parameters()) {
    if (parameter.grad().defined()) expected.push_back(parameter.grad().cpu());
  }
  tried.optimizer->zero_grad();
  int failures = 0;
  for (int64_t n = 1;; n = after(n)) {
    Faults faults;
    faults.failing_allocation = n;
    set_faults(faults);
    const std::string error = error_of([&] { tried.backward(1); });
    set_faults({});
    if (error.empty()) break;
    ++failures;
    EXPECT_NE(error.find("is out of memory"), std::string::npos) << error;
    tried.optimizer->zero_grad();
  }
  EXPECT_GT(failures, 20);
  size_t next = 0;
  for (const Tensor& parameter : tried.net->parameters()) {
    if (!parameter.grad().defined()) continue;
    ASSERT_LT(next, expected.size());
    EXPECT_TRUE(torch::equal(parameter.grad().cpu(), expected[next++]));
  }
}

TEST_F(DataParallelFaults, AFailedKernelEndsTheStep) {
  int failures = 0;
  bool has_failed = true;
  for (int64_t n = 1; has_failed; n = after(2 * n)) {
    const Training tried("3xsim");
    tried.step(0);
    const Batch batch = tried.batch(1);
    Faults faults;
    faults.failing_kernel = n;
    set_faults(faults);
    const std::string error = error_of([&] {
      tried.model->train_step(batch.x, batch.y, &class_loss, *tried.optimizer);
    });
    set_faults({});
    has_failed = !error.empty();
    failures += has_failed ? 1 : 0;
    // Without an error, every kernel of the step has to be one that worked.
    EXPECT_TRUE(has_failed || error_of([&] { tried.digest(); }).empty());
    if (has_failed) {
      EXPECT_NE(error.find("a kernel failed"), std::string::npos) << error;
    }
    forget_errors();
  }
  EXPECT_GT(failures, 4);
}

// The last kernels before the update copy gradients to the first device.
TEST_F(DataParallelFaults, AStepDoesNotUpdateIfAKernelBeforeTheUpdateFails) {
  // Returns the error if the n-th kernel fails.
  const auto error_with = [](int64_t n) {
    const Training tried("3xsim", wrap_options().on_phase([](StepPhase phase) {
      if (phase == StepPhase::kUpdate) set_faults({});
    }));
    tried.step(0);
    const std::string before = tried.digest();
    const Batch batch = tried.batch(1);
    Faults faults;
    faults.failing_kernel = n;
    set_faults(faults);
    std::string error = error_of([&] {
      tried.model->train_step(batch.x, batch.y, &class_loss, *tried.optimizer);
    });
    set_faults({});
    forget_errors();
    EXPECT_EQ(tried.digest() == before, !error.empty()) << n << ": " << error;
    return error;
  };
  int64_t works = 1;  // fails at first
  while (!error_with(works).empty()) works *= 2;
  int64_t fails = works / 2;
  while (works - fails > 1) {
    const int64_t middle = (works + fails) / 2;
    (error_with(middle).empty() ? works : fails) = middle;
  }
  ASSERT_GT(fails, 20);
  for (int64_t n = fails; n > fails - 20; --n) {
    EXPECT_NE(error_with(n), "") << n << " of " << fails;
  }
}

TEST_F(DataParallelFaults, AStepThrowsIfAKernelOfItsUpdateFails) {
  int failures = 0;
  bool has_failed = true;
  for (int64_t n = 1; has_failed; ++n) {
    int64_t kernel = 0;
    const Training tried("3xsim", wrap_options().on_phase([&](StepPhase phase) {
      if (phase != StepPhase::kUpdate) return;
      Faults faults;
      faults.failing_kernel = kernel;
      set_faults(faults);
    }));
    tried.step(0);
    kernel = n;
    const std::string error = error_of([&] { tried.step(1); });
    set_faults({});
    has_failed = !error.empty();
    failures += has_failed ? 1 : 0;
    EXPECT_TRUE(has_failed || error_of([&] { tried.digest(); }).empty()) << n;
    forget_errors();
  }
  EXPECT_GT(failures, 20);
}

TEST_F(DataParallelFaults, ASlowDeviceDoesNotChangeTheBits) {
  const auto trained = [](const std::string& list) {
    const Training training(list);
    for (int64_t step = 0; step < 2; ++step) {
      training.step(step);
      training.backward(step);
      training.model->unshare_parameters();
      training.optimizer->step();
      training.optimizer->zero_grad();
    }
    return training.digest();
  };
  const std::string expected = trained("4xcpu");
  for (int slow = 0; slow < 3; ++slow) {
    Faults faults;
    faults.slow_device = slow;
    faults.slow_factor = 10;
    set_faults(faults);
    EXPECT_EQ(trained("3xsim"), expected) << "sim:" << slow;
  }
}

}  // namespace data_parallel_faults
}  // namespace lockstep::sim
