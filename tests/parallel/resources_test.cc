// Tests that models and worlds leave nothing behind when they are destroyed.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <unistd.h>

#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/memory.h"
#include "lockstep/parallel/data_parallel.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/over_ranks.h"

namespace lockstep {
namespace {

// One million parameters, 4 MB.
struct WideNetImpl : torch::nn::Cloneable<WideNetImpl> {
  WideNetImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(1024, 1024));
  }
  torch::Tensor forward(torch::Tensor x) { return first(x); }
  torch::nn::Linear first{nullptr};
};

/// Resources that this process, in which all ranks are threads, has open and
/// mapped.
struct Usage {
  int64_t descriptors = 0;
  int64_t shared_mappings = 0;
  int64_t resident_bytes = 0;
};

Usage usage() {
  Usage found;
  const std::filesystem::directory_iterator all("/proc/self/fd");
  found.descriptors = std::distance(begin(all), end(all));
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:lockstep") != std::string::npos) {
      ++found.shared_mappings;
    }
  }
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  found.resident_bytes = pages * ::sysconf(_SC_PAGESIZE);
  return found;
}

/// Throws if there is more than before. A heap may keep a little.
void check_flat(const Usage& before, const Usage& after) {
  constexpr int64_t kHeapBytes = 8 << 20;
  TORCH_CHECK(after.descriptors <= before.descriptors,
              "descriptors: ", before.descriptors, " before, ",
              after.descriptors, " after");
  TORCH_CHECK(after.shared_mappings <= before.shared_mappings,
              "shared mappings: ", before.shared_mappings, " before, ",
              after.shared_mappings, " after");
  TORCH_CHECK(after.resident_bytes <= before.resident_bytes + kHeapBytes,
              "resident bytes: ", before.resident_bytes, " before, ",
              after.resident_bytes, " after");
}

torch::Tensor loss_of(const torch::Tensor& output,
                      const torch::Tensor& target) {
  return torch::mse_loss(output, target);
}

void train_one_step(const ProcessGroup& world) {
  auto net = std::make_shared<WideNetImpl>();
  auto model =
      OverRanks(net, {Device{}},
                DataParallelOptions().process_group(world).intra_op_threads(1));
  model->train_step(torch::ones({2, 1024}), torch::zeros({2, 1024}), loss_of);
}

TEST(Resources, StayFlatOverModelsThatAreDropped) {
  install_accounting_allocator();
  EXPECT_EQ(testing_ddp::failure_of(2, "shm",
                                    [](ProcessGroup world) {
                                      Usage before;
                                      for (int i = 0; i < 30; ++i) {
                                        train_one_step(world);
                                        world.barrier();
                                        // Taking the measurement opens files as
                                        // well.
                                        if (world.rank() == 0 && i == 9) {
                                          before = usage();
                                        }
                                        world.barrier();
                                      }
                                      if (world.rank() == 0) {
                                        check_flat(before, usage());
                                      }
                                      world.barrier();
                                    }),
            "");
}

TEST(Resources, StayFlatOverWorldsThatAreDropped) {
  install_accounting_allocator();
  Usage before;
  for (int i = 0; i < 25; ++i) {
    ASSERT_EQ(testing_ddp::failure_of(2, "shm", &train_one_step), "");
    if (i == 9) before = usage();
  }
  EXPECT_NO_THROW(check_flat(before, usage()));
}

// The gradient of a model that is gone is still its owner's.
TEST(Resources, OfAGradientStayAsLongAsTheGradient) {
  install_accounting_allocator();
  EXPECT_EQ(
      testing_ddp::failure_of(
          2, "shm",
          [](ProcessGroup world) {
            auto net = std::make_shared<WideNetImpl>();
            {
              auto model = OverRanks(
                  net, {Device{}},
                  DataParallelOptions().process_group(world).intra_op_threads(
                      1));
              model->train_step(torch::ones({2, 1024}), torch::zeros({2, 1024}),
                                loss_of);
            }
            world.barrier();
            const auto gradient = net->first->weight.grad();
            TORCH_CHECK(gradient.isfinite().all().item<bool>());
          }),
      "");
}

// Copied gradients are counted. Blocks that other ranks read are not part of
// the cache.
TEST(Resources, OfGradientsInSharedMemorySurviveTheReleaseOfTheCache) {
  install_accounting_allocator();
  EXPECT_EQ(
      testing_ddp::failure_of(
          2, "shm",
          [](ProcessGroup world) {
            auto net = std::make_shared<WideNetImpl>();
            // Each rank has its own slice, because ranks must not use
            // each other's memory.
            const Device slice{c10::kCPU, world.rank(), 2};
            auto model = OverRanks(
                net, {slice},
                DataParallelOptions().process_group(world).intra_op_threads(1));
            const auto step = [&] {
              for (auto& p : net->parameters()) {
                p.mutable_grad().reset();
              }
              model->train_step(torch::ones({2, 1024}), torch::zeros({2, 1024}),
                                loss_of);
            };
            step();
            const int64_t copied = model->copy_bytes();
            world.barrier();
            release_cached_memory();
            world.barrier();
            for (int i = 0; i < 3; ++i) step();
            TORCH_CHECK(model->copy_bytes() == copied, copied,
                        " bytes copied before, ", model->copy_bytes(),
                        " after");
            TORCH_CHECK(copied < 1024 * 1024 * 4, "copies the weight");
          }),
      "");
}

}  // namespace
}  // namespace lockstep
