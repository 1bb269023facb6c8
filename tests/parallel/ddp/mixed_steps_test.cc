// Steps of the engine and loops of the user's own in one program, in any order:
// gradients that the ranks have not summed yet, optimizers in turn, and
// gradients that the graph does not announce.
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/nets.h"

namespace lockstep::mixed_steps_test {
namespace {

using testing_ddp::check_same;
using testing_ddp::copies;
using testing_ddp::filled;
using testing_ddp::gradients_of;
using testing_ddp::inputs;
using testing_ddp::loss_of;
using testing_ddp::NetImpl;
using testing_ddp::targets;
using testing_nets::slices;
using torch::Tensor;
using Options = DistributedDataParallelOptions;

/// A statement of a training program. Each computes the loss of another batch.
enum class Do { kLocalBackward, kLocalStep, kBackward, kStep };
using Program = std::vector<Do>;

std::string text_of(const Program& program) {
  std::string text;
  for (const Do what : program) text += "bsBS"[static_cast<int>(what)];
  return text;
}

/// Programs of up to `longest` statements, of which the last one is synced.
std::vector<Program> programs(size_t longest) {
  std::vector<Program> all, open{{}};
  while (!open.empty()) {
    std::vector<Program> longer;
    for (const Program& start : open) {
      for (const Do what :
           {Do::kLocalBackward, Do::kLocalStep, Do::kBackward, Do::kStep}) {
        Program program = start;
        program.push_back(what);
        if (what == Do::kBackward || what == Do::kStep) all.push_back(program);
        if (program.size() < longest) longer.push_back(std::move(program));
      }
    }
    open = std::move(longer);
  }
  return all;
}

/// The samples of each rank in batch `i`.
using Split = std::function<std::vector<int64_t>(int64_t i)>;

int64_t sum_of(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

/// Returns the gradients that a program leaves if one process computes all
/// batches.
std::vector<Tensor> plain_gradients(const Program& program,
                                    const Split& split) {
  const auto net = filled(std::make_shared<NetImpl>());
  for (size_t i = 0; i < program.size(); ++i) {
    const auto first = static_cast<int64_t>(100 * i);
    const int64_t count = sum_of(split(static_cast<int64_t>(i)));
    loss_of(net->forward(inputs(first, count)), targets(first, count))
        .backward();
  }
  return gradients_of(*net);
}

template <class Model>
void run(Model& model, const Program& program, const Split& split,
         const ProcessGroup& world) {
  for (size_t i = 0; i < program.size(); ++i) {
    const std::vector<int64_t> counts = split(static_cast<int64_t>(i));
    auto first = static_cast<int64_t>(100 * i);
    for (int rank = 0; rank < world.rank(); ++rank) {
      first += counts[static_cast<size_t>(rank)];
    }
    const int64_t count = counts[static_cast<size_t>(world.rank())];
    const Tensor x = inputs(first, count), y = targets(first, count);
    const Do what = program[i];
    const auto add_gradients = [&] {
      if (what == Do::kLocalBackward || what == Do::kBackward) {
        loss_of(model->forward(x), y).backward();
      } else {
        model->train_step(x, y, loss_of,
                          TrainStepOptions().total_samples(sum_of(counts)));
      }
    };
    if (what == Do::kLocalBackward || what == Do::kLocalStep) {
      const auto no_sync = model->no_sync();
      add_gradients();
    } else {
      add_gradients();
    }
  }
}

class MixedSteps : public testing_ddp::OnBackends {};

INSTANTIATE_TEST_SUITE_P(Backends, MixedSteps, testing::Values("shm", "tcp"),
                         [](const auto& info) { return info.param; });

TEST_P(MixedSteps, SumEverythingAtTheNextSyncedCallInAnyOrder) {
  for (const int ranks : {2, 3}) {
    const Split even = [&](int64_t) {
      return std::vector<int64_t>(static_cast<size_t>(ranks), 2);
    };
    run_on_ranks(ranks, [&](ProcessGroup world) {
      const auto net = filled(std::make_shared<NetImpl>());
      DistributedDataParallel model(net, world);
      for (const Program& program : programs(3)) {
        model->zero_grad();
        run(model, program, even, world);
        try {
          check_same(gradients_of(*net), plain_gradients(program, even), 1e-5);
        } catch (const c10::Error& error) {
          throw std::runtime_error(text_of(program) + ": " + error.what());
        }
      }
    });
  }
}

TEST_P(MixedSteps, SumOfDataParallelIsThatOfDdp) {
  const Split even = [](int64_t) { return std::vector<int64_t>{4, 4}; };
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    DataParallel model(net, slices(2),
                       DataParallelOptions().process_group(world));
    for (const Program& program : programs(2)) {
      model->zero_grad();
      run(model, program, even, world);
      check_same(gradients_of(*net), plain_gradients(program, even), 1e-5);
    }
  });
}

// Uneven in the same way in each batch, so that each rank's weight is the same
// in a backward and in a step. Only steps may change the split.
TEST_P(MixedSteps, WeightUnevenBatchesByTheirSamples) {
  const Split same = [](int64_t) { return std::vector<int64_t>{2, 1}; };
  const Split other = [](int64_t i) {
    return i % 2 == 0 ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{2, 2};
  };
  struct Case {
    Program program;
    Split split;
  };
  using enum Do;
  const std::vector<Case> cases{
      {{kLocalBackward, kBackward}, same},
      {{kLocalBackward, kStep}, same},
      {{kLocalStep, kBackward}, same},
      {{kLocalStep, kBackward}, other},
      {{kLocalStep, kStep}, other},
      {{kLocalStep, kLocalStep, kStep}, other},
      {{kStep, kLocalStep, kStep}, other},
  };
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(net, world,
                                  Options().average(GradientAverage::kSamples));
    for (const Case& of : cases) {
      model->zero_grad();
      run(model, of.program, of.split, world);
      try {
        check_same(gradients_of(*net), plain_gradients(of.program, of.split),
                   1e-5);
      } catch (const c10::Error& error) {
        throw std::runtime_error(text_of(of.program) + ": " + error.what());
      }
    }
  });
}

TEST_P(MixedSteps, RefuseTwoWeightsForOneGradient) {
  const Split split = [](int64_t) { return std::vector<int64_t>{2, 1}; };
  using enum Do;
  for (const Do last : {kBackward, kStep}) {
    const std::string failure = on_ranks(2, [&](ProcessGroup world) {
      const auto net = filled(std::make_shared<NetImpl>());
      DistributedDataParallel model(
          net, world, Options().average(GradientAverage::kSamples));
      run(model, {kLocalBackward, kLocalStep, last}, split, world);
    });
    EXPECT_NE(failure.find("[misuse]"), std::string::npos) << failure;
    EXPECT_NE(failure.find("of backward() and of train_step()"),
              std::string::npos)
        << failure;
  }
}

TEST_P(MixedSteps, ForgetWhatZeroGradCleared) {
  const Split even = [](int64_t) { return std::vector<int64_t>{2, 2}; };
  using enum Do;
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(net, world);
    for (const bool set_to_none : {true, false}) {
      for (const Do first : {kLocalBackward, kLocalStep}) {
        for (const Do last : {kBackward, kStep}) {
          run(model, {first}, even, world);
          model->zero_grad(set_to_none);
          run(model, {last}, even, world);
          check_same(gradients_of(*net), plain_gradients({last}, even), 1e-5);
          model->zero_grad();
        }
      }
    }
  });
}

// As in a GAN with both networks in one module.
TEST_P(MixedSteps, LeaveNothingForTheOptimizerOfAnotherPart) {
  const auto plain = filled(std::make_shared<NetImpl>());
  const auto steps = [&](NetImpl& net, const auto& step) {
    torch::optim::SGD first(net.first->parameters(), 0.1);
    torch::optim::SGD second(net.second->parameters(), 0.1);
    for (int64_t i = 0; i < 6; ++i) step(i, i % 2 == 0 ? first : second);
  };
  steps(*plain, [&](int64_t i, torch::optim::SGD& optimizer) {
    plain->zero_grad();
    loss_of(plain->forward(inputs(8 * i, 8)), targets(8 * i, 8)).backward();
    optimizer.step();
  });
  const auto expected = copies(plain->parameters());
  const auto check_empty = [](const NetImpl& net) {
    for (const auto& item : net.named_parameters()) {
      TORCH_CHECK(!item.value().grad().defined(), item.key());
    }
  };
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(net, world);
    steps(*net, [&](int64_t i, torch::optim::SGD& optimizer) {
      const int64_t first = 8 * i + 4 * world.rank();
      model->train_step(inputs(first, 4), targets(first, 4), loss_of,
                        optimizer);
      check_empty(*net);
    });
    check_same(copies(net->parameters()), expected, 1e-5);
  });
  const auto net = filled(std::make_shared<NetImpl>());
  DataParallel model(net, slices(2));
  steps(*net, [&](int64_t i, torch::optim::SGD& optimizer) {
    model->train_step(inputs(8 * i, 8), targets(8 * i, 8), loss_of, optimizer);
    check_empty(*net);
  });
  check_same(copies(net->parameters()), expected, 1e-5);
}

// The ranks share the optimizer's state in train_step(), but not in its own
// step().
TEST_P(MixedSteps, LetTheUserMakeTheUpdateOfAnOptimizer) {
  const auto plain = filled(std::make_shared<NetImpl>());
  torch::optim::Adam adam(plain->parameters(), 0.01);
  for (int64_t i = 0; i < 4; ++i) {
    adam.zero_grad();
    loss_of(plain->forward(inputs(8 * i, 8)), targets(8 * i, 8)).backward();
    adam.step();
  }
  const auto expected = copies(plain->parameters());
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    DistributedDataParallel model(net, world);
    torch::optim::Adam own(net->parameters(), 0.01);
    for (int64_t i = 0; i < 4; ++i) {
      const int64_t first = 8 * i + 4 * world.rank();
      const Tensor x = inputs(first, 4);
      const Tensor y = targets(first, 4);
      if (i % 2 == 0) {
        model->train_step(x, y, loss_of, own);
        continue;
      }
      model->train_step(x, y, loss_of);
      own.step();
      own.zero_grad();
    }
    check_same(copies(net->parameters()), expected, 1e-5);
  });
}

/// A penalty on the gradient at points that the loss or the module makes.
struct PenaltyImpl : NetImpl {
  Tensor forward(Tensor x) {
    const Tensor at = x.detach().requires_grad_();
    const Tensor output = NetImpl::forward(at);
    const Tensor slope = torch::autograd::grad({output.sum()}, {at}, {},
                                               /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
    if (keeps) kept = at;
    return output + slope.pow(2).sum(1, /*keepdim=*/true);
  }
  bool keeps = false;
  Tensor kept;
};

TEST_P(MixedSteps, LeavesThatTheModuleMakesAreItsOwn) {
  const auto plain = filled(std::make_shared<PenaltyImpl>());
  loss_of(plain->forward(inputs(0, 8)), targets(0, 8)).backward();
  const auto expected = gradients_of(*plain);
  const auto factory = [] { return std::make_shared<PenaltyImpl>(); };
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(factory());
    DistributedDataParallel<PenaltyImpl> model(net, factory, world);
    for (int step = 0; step < 2; ++step) {
      model->zero_grad();
      model->train_step(inputs(4 * world.rank(), 4),
                        targets(4 * world.rank(), 4), loss_of);
      check_same(gradients_of(*net), expected, 1e-5);
    }
  });
}

TEST_P(MixedSteps, ALeafFromOutsideIsStillRefused) {
  const std::string failure = on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    const Tensor temperature = torch::ones({}, torch::requires_grad());
    DistributedDataParallel model(net, world);
    model->train_step(inputs(0, 4), targets(0, 4),
                      [&](const Tensor& output, const Tensor& target) {
                        return loss_of(output * temperature, target);
                      });
  });
  EXPECT_NE(failure.find("[unsupported-graph]"), std::string::npos) << failure;
}

struct NormImpl : torch::nn::Cloneable<NormImpl> {
  NormImpl() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    fc = register_module("fc", torch::nn::Linear(4, 3));
  }
  Tensor forward(Tensor x) { return fc(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear fc{nullptr};
};

// load_buffers() brings the buffers of a step, but a backward has newer ones.
TEST_P(MixedSteps, KeepTheBuffersOfABackward) {
  const auto plain = filled(std::make_shared<NormImpl>());
  plain->forward(inputs(0, 4));
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NormImpl>());
    DistributedDataParallel model(net, world);
    model->make_state(net->fc->weight);
    const int64_t first = 4 * world.rank();
    loss_of(model->forward(inputs(first, 4)), targets(first, 4)).backward();
    model->load_buffers();
    check_same(copies(net->buffers()), copies(plain->buffers()), 1e-6);
  });
}

// The graph keeps what sums the gradients.
TEST_P(MixedSteps, AWrapperThatIsDestroyedBeforeTheBackwardStillSums) {
  const Split even = [](int64_t) { return std::vector<int64_t>{2, 2}; };
  const auto expected = plain_gradients({Do::kBackward}, even);
  run_on_ranks(2, [&](ProcessGroup world) {
    const auto net = filled(std::make_shared<NetImpl>());
    Tensor loss;
    {
      DistributedDataParallel model(net, world);
      const int64_t first = 2 * world.rank();
      loss = loss_of(model->forward(inputs(first, 2)), targets(first, 2));
    }
    loss.backward();
    check_same(gradients_of(*net), expected, 1e-5);
  });
}

}  // namespace
}  // namespace lockstep::mixed_steps_test
