#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/process_group.h"
#include "tests/parallel/tested_devices.h"

// Ranks as threads, and what they compute on, for the tests of this layer. Each
// rank has a device of its own, and its modules and data are there.
namespace lockstep::testing_ddp {

using tested::home;

/// Returns the message of the first exception that a rank threw, or "".
inline std::string failure_of(int ranks, const std::string& backend,
                              const std::function<void(ProcessGroup)>& task) {
  ProcessGroupOptions options;
  options.backend(backend).device_type(tested::kind().type);
  options.timeout(std::chrono::seconds(60)).bad_links(BadLinks::kIgnore);
  const auto run_rank = [&](const ProcessGroup& world) {
    tested::place_of_thread() = {options.device_type(), world.rank(),
                                 world.size()};
    task(world);
  };
  try {
    spawn(ranks, run_rank, options);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// A test over each backend that the ranks of this program have.
class OnBackends : public testing::TestWithParam<const char*> {
 protected:
  /// Returns whether a sum over the ranks has the bits of one process.
  /// Backends of devices add in an order of their own.
  static bool sums_along_tree() {
    const std::string backend = GetParam();
    return backend == "shm" || backend == "tcp";
  }
  static std::string on_ranks(int ranks,
                              const std::function<void(ProcessGroup)>& task) {
    return failure_of(ranks, GetParam(), task);
  }
  /// Same, and expects that no rank throws.
  static void run_on_ranks(int ranks,
                           const std::function<void(ProcessGroup)>& task) {
    EXPECT_EQ(on_ranks(ranks, task), "");
  }
};

/// Two layers with a ReLU between them.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  explicit NetImpl(int64_t hidden_ = 8) : hidden(hidden_) { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(4, hidden));
    second = register_module("second", torch::nn::Linear(hidden, 3));
  }
  torch::Tensor forward(torch::Tensor x) {
    return second(torch::relu(first(x)));
  }
  int64_t hidden;
  torch::nn::Linear first{nullptr}, second{nullptr};
};

/// Fills `module` with the same values on every rank and in every test, and
/// moves it to this rank's device. Does not use the default generator, which
/// threads share.
template <class M>
std::shared_ptr<M> filled(std::shared_ptr<M> module) {
  const torch::NoGradGuard no_grad;
  double at = 0;
  for (auto& parameter : module->parameters()) {
    const auto n = parameter.numel();
    parameter.copy_(
        (torch::arange(n, torch::kDouble).mul(0.7).add(at).sin() * 0.5)
            .view(parameter.sizes()));
    at += 1.3;
  }
  module->to(home());
  return module;
}

/// Samples [first, first + count) of an endless data set.
inline torch::Tensor inputs(int64_t first, int64_t count) {
  return torch::arange(first * 4, (first + count) * 4, torch::kFloat)
      .mul(0.37)
      .sin()
      .view({count, 4})
      .to(home());
}
inline torch::Tensor targets(int64_t first, int64_t count) {
  return (torch::arange(first, first + count, torch::kLong) % 3).to(home());
}

inline torch::Tensor loss_of(const torch::Tensor& output,
                             const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

/// Returns copies in memory of the host. A rank that reads memory of another
/// rank's device would wait for that rank's collectives.
inline std::vector<torch::Tensor> copies(
    const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> result;
  for (const auto& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().cpu().clone() : tensor);
  }
  return result;
}

inline std::vector<torch::Tensor> gradients_of(const torch::nn::Module& m) {
  std::vector<torch::Tensor> gradients;
  for (const auto& p : m.parameters()) gradients.push_back(p.grad());
  return copies(gradients);
}

/// Throws unless the two are equal (relative tolerance 0: bit by bit), on
/// whatever devices they are.
inline void check_same(const std::vector<torch::Tensor>& got,
                       const std::vector<torch::Tensor>& expected,
                       double tolerance = 0) {
  TORCH_CHECK(got.size() == expected.size(), got.size(), " tensors");
  for (size_t i = 0; i < got.size(); ++i) {
    TORCH_CHECK(got[i].defined() == expected[i].defined(), "tensor ", i,
                " is defined: ", got[i].defined());
    if (!got[i].defined()) continue;
    const torch::Tensor a = got[i].cpu(), b = expected[i].cpu();
    const bool is_same = tolerance == 0
                             ? torch::equal(a, b)
                             : torch::allclose(a, b, tolerance, tolerance);
    TORCH_CHECK(is_same, "tensor ", i, ": got ", a, " expected ", b);
  }
}

inline std::vector<torch::Tensor> sum_of(
    std::vector<torch::Tensor> some, const std::vector<torch::Tensor>& others) {
  for (size_t i = 0; i < some.size(); ++i) some[i] += others[i];
  return some;
}

/// The gradient of the mean loss over samples [first, first + count).
inline std::vector<torch::Tensor> plain_gradients(int64_t first,
                                                  int64_t count) {
  auto net = filled(std::make_shared<NetImpl>());
  loss_of(net->forward(inputs(first, count)), targets(first, count)).backward();
  return gradients_of(*net);
}

}  // namespace lockstep::testing_ddp
