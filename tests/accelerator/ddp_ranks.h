#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/device/intra_op.h"
#include "tests/accelerator/sim/accelerator.h"
#include "tests/parallel/ddp/ranks.h"
#include "tests/parallel/tested_devices.h"

// Ranks as threads, each on a simulated device, and the same ranks on the CPU.
namespace lockstep::sim {

inline constexpr int64_t kLargeHidden = 20'000;  // weights of 320 kB

/// Returns two layers on `home` with the same values on each rank.
inline std::shared_ptr<testing_ddp::NetImpl> net_on(
    const torch::Device& home, int64_t hidden = kLargeHidden) {
  auto net =
      testing_ddp::filled(std::make_shared<testing_ddp::NetImpl>(hidden));
  net->to(home);
  return net;
}

/// Computes on a rank, with the module and the data on `home`. Returns tensors
/// to compare.
using RankTask = std::function<std::vector<torch::Tensor>(
    const ProcessGroup& world, const torch::Device& home)>;
using RankResults = std::vector<std::vector<torch::Tensor>>;  ///< by rank

inline RankResults results_of_ranks(int ranks,
                                    const ProcessGroupOptions& options,
                                    const RankTask& task) {
  RankResults results(static_cast<size_t>(ranks));
  spawn(
      ranks,
      [&](const ProcessGroup& world) {
        // The current device stays sim:0 on each rank, which shows where a
        // device guard is missing.
        set_intra_op_threads_of_this_thread(1);
        tested::place_of_thread() = {options.device_type(), world.rank(),
                                     world.size()};
        const torch::Device home = tested::home();
        auto& result = results[static_cast<size_t>(world.rank())];
        for (const torch::Tensor& tensor : task(world, home)) {
          result.push_back(tensor.defined() ? tensor.detach().cpu().clone()
                                            : tensor);
        }
      },
      options);
  return results;
}

/// The check of the links takes seconds, so few tests make it.
inline RankResults results_on_sim(int ranks, const std::string& backend,
                                  const RankTask& task,
                                  BadLinks bad_links = BadLinks::kIgnore) {
  ProcessGroupOptions options;
  options.backend(backend).device_type(kSim).timeout(std::chrono::seconds(60));
  options.bad_links(bad_links);
  return results_of_ranks(ranks, options, task);
}

/// Ranks on the CPU that share no memory, as ranks on devices.
inline RankResults results_on_cpu(int ranks, const RankTask& task) {
  ProcessGroupOptions options;
  options.backend("tcp").timeout(std::chrono::seconds(60));
  return results_of_ranks(ranks, options, task);
}

inline void expect_same_tensors(const std::vector<torch::Tensor>& got,
                                const std::vector<torch::Tensor>& expected,
                                double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), expected.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << what;
    if (!got[i].defined()) continue;
    const bool is_same = tolerance == 0 ? torch::equal(got[i], expected[i])
                                        : torch::allclose(got[i], expected[i],
                                                          tolerance, tolerance);
    EXPECT_TRUE(is_same) << what << ", tensor " << i << ": got "
                         << got[i].flatten().slice(0, 0, 8) << "expected "
                         << expected[i].flatten().slice(0, 0, 8);
  }
}

}  // namespace lockstep::sim
