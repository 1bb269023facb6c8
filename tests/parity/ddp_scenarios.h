#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/parallel/distributed_data_parallel.h"
#include "tests/parity/ddp_nets.h"

// The scenarios of pytorch_ddp.py, with the same names.
namespace lockstep::testing_parity {

using Options = DistributedDataParallelOptions;

constexpr int64_t kSteps = 10;

// Both sides run the same kernels of one LibTorch, so SGD gives the same bits.
// AdamW orders its products differently in C++ and Python, and PowerSGD orders
// its sums differently. That gives 1e-7 per step, and about 1e-6 after ten
// steps. A wrong weight or a missed step gives 1e-3 or more.
constexpr double kTolerance = 1e-5;
// AdamW's difference of 1e-7 can round the gradient of one rank to the next
// number: 2^-11 of the sum in half precision, 2^-8 in bfloat16. With a rate of
// 0.01 and a bias of 0.1, that is 5e-5 and 4e-4. Without the hook, it would be
// 2.6e-4 and 3e-3.
constexpr double kHalfTolerance = 1e-4;
constexpr double kBFloat16Tolerance = 5e-4;

template <class N>
std::shared_ptr<Net> make() {
  return std::make_shared<N>();
}

struct Scenario {
  std::string name;
  std::shared_ptr<Net> (*net)() = make<Mlp>;
  Options options = {};
  std::function<CommHook()> hook = {};  ///< makes a separate hook for each rank
  int64_t micro_batches = 1;            ///< under no_sync(), except the last
  int64_t forwards = 1;                 ///< before one backward
  std::vector<int64_t> steps = {kSteps, kSteps};  ///< for each rank
  std::optional<JoinOptions> join = {};
  double loss_scale = 1;
  bool has_detours = false;
  bool has_same_buffers = true;
  double adamw_tolerance = kTolerance;
};

inline PowerSGDOptions power_sgd(int64_t rank) {
  return PowerSGDOptions()
      .matrix_approximation_rank(rank)
      .start_powerSGD_iter(2)
      .min_compression_rate(0.5)
      .orthogonalization_epsilon(1e-8)
      .random_seed(7);
}

inline std::vector<Scenario> uneven_scenarios() {
  // torch's default, which doesn't change .grad on a rank without inputs.
  const Options options = Options().gradient_as_bucket_view(false);
  const auto by_active = JoinOptions().divide_by_initial_world_size(false);
  return {{.name = "join",
           .options = options,
           .steps = {10, 6},
           .join = JoinOptions()},
          {.name = "join_rank_1_last",
           .options = options,
           .steps = {6, 10},
           .join = JoinOptions()},
          {.name = "join_by_active",
           .options = options,
           .steps = {10, 6},
           .join = by_active},
          // Within join(), torch takes the buffers of the last rank that has
          // inputs, before a forward. Ours takes those of the first rank after
          // a backward, as it does without join().
          {.name = "join_conv",
           .net = make<Conv>,
           .options = options,
           .steps = {6, 10},
           .join = JoinOptions(),
           .has_same_buffers = false}};
}

inline std::vector<Scenario> hook_scenarios() {
  return {
      {.name = "allreduce", .hook = [] { return allreduce_hook; }},
      // Scaled, as is usual in half precision. Small gradients would be
      // subnormal. Then it would matter that ours are averaged before rounding
      // and torch's after rounding.
      {.name = "fp16",
       .hook = [] { return fp16_compress_hook; },
       .loss_scale = 1024,
       .adamw_tolerance = kHalfTolerance},
      {.name = "bf16",
       .hook = [] { return bf16_compress_hook; },
       .adamw_tolerance = kBFloat16Tolerance},
      {.name = "power_sgd_1", .hook = [] { return PowerSGD(power_sgd(1)); }},
      {.name = "power_sgd_4", .hook = [] { return PowerSGD(power_sgd(4)); }},
      {.name = "power_sgd_forgetful",
       .hook =
           [] {
             return PowerSGD(
                 power_sgd(2).warm_start(false).use_error_feedback(false));
           }},
      {.name = "power_sgd_conv", .net = make<Conv>, .hook = [] {
         return PowerSGD(power_sgd(1));
       }}};
}

inline std::vector<Scenario> plain_scenarios() {
  const auto copies = Options().gradient_as_bucket_view(false);
  const auto views = Options().gradient_as_bucket_view(true);
  // A kilobyte, which is less than a layer.
  constexpr double kSmall = 0.001;
  return {{.name = "mlp"},
          {.name = "conv", .net = make<Conv>},
          {.name = "channels_last", .net = make<ChannelsLast>},
          {.name = "copies", .options = copies},
          {.name = "views", .options = views},
          {.name = "small_buckets",
           .options = Options(copies).bucket_cap_mb(kSmall)},
          {.name = "small_buckets_views",
           .options = Options(views).bucket_cap_mb(kSmall)}};
}

inline std::vector<Scenario> partial_graph_scenarios() {
  const auto static_graph = Options().static_graph(true);
  return {
      {.name = "unused",
       .net = make<Branched>,
       .options = Options().find_unused_parameters(true),
       .has_detours = true},
      {.name = "static_unused", .net = make<Branched>, .options = static_graph},
      {.name = "checkpointed",
       .net = make<Checkpointed>,
       .options = static_graph}};
}

/// Returns the scenarios that one run of the script trains, because its start
/// takes longest.
inline std::vector<Scenario> scenarios_of(const std::string& group) {
  if (group == "plain") return plain_scenarios();
  if (group == "accumulation") {
    return {{.name = "accumulated", .micro_batches = 3},
            {.name = "two_forwards", .forwards = 2},
            {.name = "tied", .net = make<Tied>}};
  }
  if (group == "partial_graphs") return partial_graph_scenarios();
  return group == "join" ? uneven_scenarios() : hook_scenarios();
}

}  // namespace lockstep::testing_parity
