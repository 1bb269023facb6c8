// Training over broken peer copies. It is the story of an article in which
// ResNet34 on CIFAR-10 gets a loss of NaN on GPUs that NVLink does not connect.
// Tier: full. It starts processes.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/device/links/links.h"
#include "lockstep/device/tensor_checksum.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/module/replicate.h"
#include "tests/accelerator/broken_link.h"
#include "tests/accelerator/ddp_ranks.h"
#include "tests/accelerator/sim/accelerator.h"

namespace lockstep::sim::links {
namespace {

using torch::Tensor;

constexpr int64_t kBatch = 16;
constexpr int kSteps = 8;

/// The images and classes of some steps.
struct Images {
  Tensor x;
  Tensor y;
};

/// Reads the first images of CIFAR-10, or generates some if they are not here.
Images read_images() {
  constexpr int64_t kCount = kBatch * kSteps;
  constexpr int64_t kPixels = 3 * 32 * 32;
  const char* named = std::getenv("LOCKSTEP_CIFAR10_DIR");
  std::ifstream file(std::string(named != nullptr ? named
                                                  : LOCKSTEP_SOURCE_DIR
                                     "/../shared/data/cifar10") +
                         "/data_batch_1.bin",
                     std::ios::binary);
  Tensor records = torch::empty({kCount, 1 + kPixels}, torch::kUInt8);
  if (file.read(static_cast<char*>(records.mutable_data_ptr()),
                records.numel())) {
    const Tensor pixels = records.narrow(1, 1, kPixels).to(torch::kFloat);
    return {pixels.div(255).sub(0.47).div(0.25).reshape({kCount, 3, 32, 32}),
            records.select(1, 0).to(torch::kLong)};
  }
  torch::manual_seed(1);
  return {torch::randn({kCount, 3, 32, 32}), torch::randint(10, {kCount})};
}

const Images& images() {
  static const Images shared_images = read_images();
  return shared_images;
}

struct ConvNetImpl : torch::nn::Cloneable<ConvNetImpl> {
  ConvNetImpl() { reset(); }
  void reset() override {
    const auto conv = [](int64_t in, int64_t out) {
      return torch::nn::Conv2d(
          torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1));
    };
    first = register_module("first", conv(3, 8));
    second = register_module("second", conv(8, 16));
    fc = register_module("fc", torch::nn::Linear(16 * 64, 10));
  }
  Tensor forward(const Tensor& x) {
    return fc(second(first(x).relu()).relu().flatten(1));
  }
  torch::nn::Conv2d first{nullptr};
  torch::nn::Conv2d second{nullptr};
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(ConvNet);

struct Course {
  std::vector<double> losses;
  std::string digest;
};

/// Returns the largest loss. A NaN counts as infinite.
double largest(const Course& course) {
  double found = 0;
  for (const double loss : course.losses) {
    found = std::max(found, std::isnan(loss) ? HUGE_VAL : loss);
  }
  return found;
}

std::ostream& operator<<(std::ostream& out, const Course& run) {
  for (const double loss : run.losses) out << ' ' << loss;
  return out;
}

struct Setting {
  double lr = 0.1;
  BadLinks bad_links = BadLinks::kStage;
  int steps = kSteps;
  int64_t shards = 4;
  /// AdamW, the state of which is divided between the devices, and not SGD.
  bool divides_state = false;
};

Tensor loss_of(const Tensor& output, const Tensor& target) {
  return torch::cross_entropy_loss(output, target);
}

/// Returns images [first, first + count) of a step's batch.
Images batch(int step, int64_t first, int64_t count, torch::Device home) {
  const int64_t begin = step % kSteps * kBatch + first;
  return {images().x.narrow(0, begin, count).to(home),
          images().y.narrow(0, begin, count).to(home)};
}

template <class Parameters>
std::string digest_of_all(const Parameters& parameters) {
  std::string digest;
  for (const Tensor& parameter : parameters) {
    digest += checksum_of(parameter.detach().cpu());
  }
  return digest;
}

Course train(const std::vector<Device>& devices, const Setting& setting) {
  torch::manual_seed(3);
  ConvNet net;
  lockstep::to(*net, devices.front());
  DataParallel model(net.ptr(), devices,
                     DataParallelOptions()
                         .shards(setting.shards)
                         .intra_op_threads(1)
                         .verify(Verify::kNever)
                         .divide_state(setting.divides_state)
                         .bad_links(setting.bad_links));
  torch::optim::SGD sgd(model->parameters(),
                        torch::optim::SGDOptions(setting.lr).momentum(0.9));
  torch::optim::AdamW adamw(model->parameters(), setting.lr);
  Course course;
  for (int step = 0; step < setting.steps; ++step) {
    const auto [x, y] = batch(step, 0, kBatch, torch_device(devices.front()));
    const StepResult result = setting.divides_state
                                  ? model->train_step(x, y, loss_of, adamw)
                                  : model->train_step(x, y, loss_of, sgd);
    course.losses.push_back(result.loss);
  }
  course.digest = digest_of_all(model->parameters());
  return course;
}

std::vector<Device> two_slices() {
  return devices("2xcpu", Duplicates::kRefuse, Oversubscription::kAllow);
}

class TrainingOverABrokenLink : public LinksOnAccelerator {
 protected:
  static constexpr size_t kGradient = 512;  // bytes; no inputs are changed
};

// The article's three learning rates. The first loss is right, because only
// gradients go over the broken link. With a hundredth of the rate, the loss
// grows more slowly.
TEST_F(TrainingOverABrokenLink, ExplodesAtEachLearningRate) {
  for (const double lr : {0.1, 0.05, 0.001}) {
    restore();
    const Course good = train(two_slices(), {.lr = lr});
    const auto copies = break_link({.least_bytes = kGradient});
    const Course bad =
        train(first_devices(2), {.lr = lr, .bad_links = BadLinks::kIgnore});
    std::cout << "lr " << lr << "\n  good link:  " << good
              << "\n  broken link:" << bad << '\n';
    EXPECT_GT(copies->broken, 0);
    EXPECT_EQ(bad.losses.front(), good.losses.front());
    EXPECT_NE(bad.digest, good.digest);
    EXPECT_LT(largest(good), 3);
    if (lr == 0.001) {  // it is finite, and grows slowly
      EXPECT_LT(largest(bad), 1e6);
      EXPECT_GT(bad.losses.back(), 1.5 * good.losses.back());
    } else {
      EXPECT_GT(largest(bad), 1e6);
    }
  }
}

TEST_F(TrainingOverABrokenLink, HasTheBitsOfSlicesByTheSafeWay) {
  for (const bool divides_state : {false, true}) {
    restore();
    const Setting as_usual{.divides_state = divides_state};
    const Setting ignoring{.bad_links = BadLinks::kIgnore,
                           .divides_state = divides_state};
    const Course expected = train(two_slices(), as_usual);
    EXPECT_EQ(train(first_devices(2), ignoring).digest, expected.digest);
    for (const int from : {0, 1}) {
      restore();
      const auto copies =
          break_link({.from = from, .to = 1 - from, .least_bytes = kGradient});
      LogCapture log;
      guard_links(first_devices(2), BadLinks::kStage);
      const auto checked = copies->broken.load();
      copies->good = 0;
      EXPECT_EQ(train(first_devices(2), as_usual).digest, expected.digest);
      EXPECT_EQ(copies->broken, checked);  // none went over the broken link
      EXPECT_GT(copies->good, 0);          // others stay direct
    }
  }
}

TEST_F(TrainingOverABrokenLink, HasTheBitsOfSlicesIfNothingIsWritten) {
  const Course expected = train(two_slices(), {});
  Faults faults;
  faults.drop_copy = [](int from, int to) { return from == 0 && to == 1; };
  set_faults(faults);
  LogCapture log;
  EXPECT_EQ(train(first_devices(2), {}).digest, expected.digest);
  EXPECT_NE(log.text().find("now go through host memory"), std::string::npos)
      << log.text();
}

// The check before a run makes too few copies to see it: `lockstep check` has
// --rounds.
TEST_F(TrainingOverABrokenLink, HasOtherBitsIfOneCopyOfFiftyIsChanged) {
  constexpr int kManySteps = 20;
  const Course expected =
      train(two_slices(), {.lr = 0.05, .steps = kManySteps});
  const auto copies = break_link({.least_bytes = kGradient, .one_of = 50});
  const Course bad =
      train(first_devices(2),
            {.lr = 0.05, .bad_links = BadLinks::kIgnore, .steps = kManySteps});
  std::cout << "1 of 50 copies changed:" << bad << '\n';
  EXPECT_GE(copies->broken, 50);
  EXPECT_NE(bad.digest, expected.digest);
}

TEST_F(TrainingOverABrokenLink, HasTheBitsOfSlicesWithoutPeerAccess) {
  const Course expected = train(two_slices(), {});
  Faults faults;
  faults.peer_access = false;
  set_faults(faults);
  EXPECT_EQ(train(first_devices(2), {.bad_links = BadLinks::kIgnore}).digest,
            expected.digest);
}

TEST_F(TrainingOverABrokenLink, HasTheBitsOfSlicesWhileACopyHangs) {
  const Course expected = train(two_slices(), {});
  Faults faults;
  faults.hang_copy = [](int from, int to) { return from == 1 && to == 0; };
  set_faults(faults);
  const auto findings =
      check_links(links_between(first_devices(2)),
                  LinkCheckOptions().sizes({1 << 10}).timeout_s(0.5));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, LinkFinding::Kind::kTimeout);
  set_copy_path(findings[0].copy.link, CopyPath::kStaged);
  const Course staged =
      train(first_devices(2), {.bad_links = BadLinks::kIgnore});
  EXPECT_EQ(staged.digest, expected.digest);
}

// The next part of the article: DDP makes no copies between devices of this
// process.
TEST_F(TrainingOverABrokenLink, HasTheBitsOfSlicesWithRanksOverTheHost) {
  const Course expected = train(two_slices(), {.shards = 2});
  const auto copies = break_link({});
  torch::manual_seed(3);
  const ConvNet original;
  for (const char* backend : {"shm", "tcp"}) {
    const auto task = [&](const ProcessGroup& world,
                          const torch::Device& home) {
      const auto net =
          std::dynamic_pointer_cast<ConvNetImpl>(original->clone(home));
      DistributedDataParallel model(
          net, world, DistributedDataParallelOptions().intra_op_threads(1));
      torch::optim::SGD sgd(net->parameters(),
                            torch::optim::SGDOptions(0.1).momentum(0.9));
      constexpr int64_t kOwn = kBatch / 2;
      for (int step = 0; step < kSteps; ++step) {
        const auto [x, y] = batch(step, world.rank() * kOwn, kOwn, home);
        model->train_step(x, y, loss_of, sgd);
      }
      return net->parameters();
    };
    for (const auto& parameters : results_on_sim(2, backend, task)) {
      EXPECT_EQ(digest_of_all(parameters), expected.digest) << backend;
    }
  }
  EXPECT_EQ(copies->broken, 0);
}

TEST_F(TrainingOverABrokenLink, IsRefusedWithABackendThatUsesTheLink) {
  for (const Link& link : links_between(devices("sim"))) {
    set_copy_path(link, CopyPath::kDirect);  // as if they had been checked
  }
  set_copy_path({device(1), device(0)}, CopyPath::kStaged);
  try {
    const auto task = [](const ProcessGroup&, const torch::Device&) {
      return std::vector<Tensor>();
    };
    results_on_sim(2, "simccl", task, BadLinks::kStage);
    FAIL() << "the backend was used";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kBadLink) << error.what();
    EXPECT_NE(std::string(error.what()).find("sim:1 -> sim:0"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace lockstep::sim::links
