// Compares every type and size with the formula in float64, because ATen's
// fused kernels have skipped elements (pytorch #191763).
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/optim/block_optimizer.h"
#include "tests/optim/cut_optimizer.h"

namespace lockstep::optim {
namespace {

using torch::Tensor;

/// Returns sizes around the widths of vectors and the length of a block.
std::vector<int64_t> sizes() {
  std::vector<int64_t> sizes;
  for (int64_t n = 1; n <= 34; ++n) sizes.push_back(n);
  for (const int64_t n : {63, 64, 65, 127, 128, 129, 4096}) sizes.push_back(n);
  for (const int64_t more : {-1, 0, 1, 17}) {
    sizes.push_back(kBlockElements + more);
  }
  return sizes;
}

Tensor wave(int64_t n, double phase, at::ScalarType type) {
  return (torch::arange(n, torch::kDouble) * 0.7 + phase).sin().to(type);
}

/// Returns the largest difference of the two, in roundings of `type`.
double roundings(const Tensor& got, const Tensor& exact) {
  double epsilon = 0;
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, got.scalar_type(), "roundings", [&] {
        epsilon = static_cast<double>(std::numeric_limits<scalar_t>::epsilon());
      });
  const Tensor scale = exact.abs() + 1;
  return ((got.to(torch::kDouble) - exact).abs() / scale / epsilon)
      .max()
      .item<double>();
}

class Formula : public testing::TestWithParam<at::ScalarType> {
 protected:
  // With thousands of small steps, threads would only wait for each other.
  void SetUp() override { at::set_num_threads(1); }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  const int threads_ = at::get_num_threads();
};

INSTANTIATE_TEST_SUITE_P(Types, Formula,
                         testing::Values(at::kDouble, at::kFloat, at::kHalf,
                                         at::kBFloat16),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param));
                         });

/// Compares each step of `optimizer` with `formula`. It gets the number of the
/// step, the gradient, and the parameter and the state before the step, and
/// changes those in place.
using Change =
    std::function<void(int step, const Tensor& gradient, Tensor& parameter,
                       std::map<std::string, Tensor>& state)>;

template <class Torch>
void expect_formula(Tensor parameter, CutOptimizer<Torch>& optimizer,
                    const Change& formula, const std::string& what) {
  for (int step = 1; step <= 3; ++step) {
    const Tensor gradient =
        wave(parameter.numel(), step, parameter.scalar_type());
    Tensor exact = parameter.detach().to(torch::kDouble).clone();
    std::map<std::string, Tensor> state;
    for (const auto& [name, tensor] : optimizer->state_dict()) {
      state[name] = tensor.to(torch::kDouble).clone();
    }
    formula(step, gradient.to(torch::kDouble), exact, state);
    parameter.mutable_grad() = gradient.clone();
    optimizer.step();
    ASSERT_LT(roundings(parameter.detach(), exact), 4) << what;
    for (const auto& [name, tensor] : optimizer->state_dict()) {
      if (!tensor.is_floating_point() || tensor.dim() == 0) continue;
      ASSERT_LT(roundings(tensor, state[name]), 4) << what << " " << name;
    }
    ASSERT_TRUE(parameter.grad().equal(gradient)) << what;
  }
}

TEST_P(Formula, OfSgd) {
  for (const int64_t n : sizes()) {
    for (const double momentum : {0.0, 0.9}) {
      for (const double decay : {0.0, 0.1}) {
        for (const bool nesterov : {false, true}) {
          if (nesterov && momentum == 0) continue;
          const Tensor parameter = wave(n, 0.5, GetParam()).requires_grad_();
          CutOptimizer<torch::optim::SGD> optimizer(
              {parameter},
              torch::optim::SGDOptions(0.1)
                  .momentum(momentum)
                  .weight_decay(decay)
                  .nesterov(nesterov),
              n % 2 == 0 ? FirstMomentum::kZeros : FirstMomentum::kGradient);
          expect_formula(
              parameter, optimizer,
              [&](int, const Tensor& gradient, Tensor& p, auto& state) {
                Tensor change = gradient + decay * p;
                if (momentum != 0) {
                  Tensor& buffer = state["momentum_buffer.0"];
                  buffer = momentum * buffer + change;
                  change = nesterov ? change + momentum * buffer : buffer;
                }
                p -= 0.1 * change;
              },
              c10::str(n, " momentum ", momentum, " decay ", decay));
        }
      }
    }
  }
}

TEST_P(Formula, OfAdamW) {
  for (const int64_t n : sizes()) {
    for (const double decay : {0.0, 0.1}) {
      const Tensor parameter = wave(n, 0.5, GetParam()).requires_grad_();
      CutOptimizer<torch::optim::AdamW> optimizer(
          {parameter},
          torch::optim::AdamWOptions(0.01).eps(1e-4).weight_decay(decay));
      expect_formula(
          parameter, optimizer,
          [&](int step, const Tensor& gradient, Tensor& p, auto& state) {
            Tensor& mean = state["exp_avg.0"];
            Tensor& square = state["exp_avg_sq.0"];
            mean = 0.9 * mean + 0.1 * gradient;
            square = 0.999 * square + 0.001 * gradient.square();
            const Tensor corrected = mean / (1 - std::pow(0.9, step));
            const Tensor scale =
                (square / (1 - std::pow(0.999, step))).sqrt() + 1e-4;
            p = p * (1 - 0.01 * decay) - 0.01 * corrected / scale;
          },
          c10::str(n, " decay ", decay));
    }
  }
}

/// The bits in float32 and float64 are those of ATen's kernel.
TEST(SgdBits, AreThoseOfTheFusedKernel) {
  for (const auto type : {at::kFloat, at::kDouble}) {
    const Tensor parameter = wave(20000, 0.5, type).requires_grad_();
    const Tensor gradient = wave(20000, 1, type);
    CutOptimizer<torch::optim::SGD> optimizer(
        {parameter},
        torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1),
        FirstMomentum::kZeros);
    Tensor fused = parameter.detach().clone();
    Tensor buffer = torch::zeros_like(fused);
    for (int step = 0; step < 3; ++step) {
      parameter.mutable_grad() = gradient;
      optimizer.step();
      // One block at a time, because the end of a vector affects rounding.
      for (int64_t begin = 0; begin < 20000; begin += kBlockElements) {
        const int64_t length = std::min<int64_t>(kBlockElements, 20000 - begin);
        at::_fused_sgd_({fused.narrow(0, begin, length)},
                        {gradient.narrow(0, begin, length)},
                        {buffer.narrow(0, begin, length)}, 0.1, 0.9, 0.1, 0.0,
                        false, false, false);
      }
      EXPECT_TRUE(parameter.equal(fused));
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
