#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/serialize.h>
#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/world.h"
#include "lockstep/parallel/ddp/gradient_hooks.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/ddp/parameter_changes.h"
#include "lockstep/parallel/ddp/rounds.h"
#include "lockstep/parallel/ddp/trained_parameters.h"
#include "lockstep/parallel/ddp/watched_forwards.h"
#include "lockstep/parallel/exchange/gradient_buckets.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/reduction/local_gradients.h"

namespace lockstep::ddp {

/// Sums the gradients of a model over the ranks while the user's own backward
/// computes them: DistributedDataParallel without the module's type.
///
/// A backward that goes through a synced forward (WatchedForwards) is a *pass*.
/// It opens before the first gradient is added to a parameter (GradientHooks).
/// Each gradient is copied into its bucket as it arrives, and full buckets are
/// summed meanwhile (GradientBuckets), in a group of the reducer's own. When
/// the backward ends, .grad holds the result.
///
/// One thread at a time calls it; autograd's may be several.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Collective. `local`: the wrapper's. Throws ParallelError if the ranks'
  /// modules differ.
  static std::shared_ptr<Reducer> create(
      const World& world, ModuleHandle module,
      const DistributedDataParallelOptions& options,
      std::shared_ptr<LocalGradients> local);
  ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Before a forward under autograd. What it returns is for end_forward().
  uint64_t begin_forward();
  /// After it: a backward through what was computed in between, which was of
  /// `samples` samples, is a pass.
  void end_forward(uint64_t begin, int64_t samples);
  /// An output of that forward, such that a backward through it or through its
  /// derivatives is a pass. Its graph keeps the reducer alive.
  torch::Tensor watch(const torch::Tensor& output, int64_t samples);

  bool is_synced() const { return is_synced_; }
  /// Off: forwards are not watched, so that gradients stay this rank's.
  void set_synced(bool on) { is_synced_ = on; }
  void set_hook(CommHook hook) { buckets_->set_hook(std::move(hook)); }
  void join(const std::function<void()>& steps, const JoinOptions& options);
  bool is_joining() const { return rounds_.is_joining(); }

  /// Buckets as they are now: each one's parameters, by place.
  std::vector<std::vector<size_t>> assignment() const {
    return buckets_->assignment();
  }

 private:
  struct Pass {
    int task = 0;  ///< autograd's number of the backward
    Round round;
    bool is_shadow = false;        ///< of a rank without inputs
    bool only_counts = false;      ///< a static graph's first
    std::vector<int64_t> awaited;  ///< gradients that parameter p still lacks
    std::vector<size_t> missing;   ///< parameters that got an undefined one
    std::vector<size_t> arrivals;
    std::vector<bool> has_gradient;
    std::vector<bool> is_in_place;  ///< by parameter: .grad itself is summed
    /// .grad of before, where a sum over the ranks would change it.
    std::vector<torch::Tensor> kept;
    torch::Tensor is_used;  ///< by parameter: a byte; over all ranks at last
    /// The fingerprint of what this rank did to its parameters, and its
    /// complement; the largest of all ranks' at last.
    torch::Tensor changes;
  };

  Reducer(const World& world, ModuleHandle module,
          const DistributedDataParallelOptions& options,
          std::shared_ptr<LocalGradients> local);
  /// Follows what replaced a parameter's memory (torch::load). Throws for
  /// another type, device or shape, and for what trains only now.
  void follow_parameters();
  /// After the first pass: buckets in the order in which gradients came.
  void follow_arrivals(int root, const std::vector<size_t>& arrivals);
  void check_usable() const;
  /// Ends the other ranks' waits and throws.
  [[noreturn]] void give_up(const Problem& problem);

  // In the backward.
  void on_output(const WatchedForwards::Forward& forward);
  void before_gradient(size_t p);
  void on_gradient(size_t p, const torch::Tensor& incoming);
  Pass new_pass(const Round& round) const;
  void open_pass(int task, const WatchedForwards::Forward& reached);
  /// The parameters that this backward gives no gradient; throws if that may
  /// not be. Nothing if it is no pass after all.
  std::optional<std::vector<size_t>> check_unused();
  /// `incoming` is what autograd added to .grad now, if it did.
  void mark_ready(size_t p, bool has_gradient,
                  const torch::Tensor& incoming = {});
  /// Copies p's gradient into its bucket, weighted.
  void fill_bucket(size_t p, bool has_gradient);

  /// Before a pass: prepares .grad of earlier backward passes and steps.
  void prepare_earlier_gradients();

  // What goes to the other ranks beside the gradients.
  void send_buffers();
  void exchange_changes();
  void exchange_used();

  // At the end of the backward.
  void close_pass();
  void finish_pass();
  void check_complete();
  /// Throws if the ranks did different things to their parameters, such that
  /// those differ now.
  void check_same_parameters();
  void settle_static_graph();
  void write_back();
  /// After a backward that threw.
  void abandon() noexcept;
  /// A pass of a rank without inputs, in join().
  void shadow(const Round& round);

  DistributedDataParallelOptions options_;
  World world_;  // of this reducer alone
  ModuleHandle module_;
  TrainedParameters trained_;
  const std::vector<torch::Tensor>& parameters_;  // of trained_
  ParameterChanges changes_;
  Rounds rounds_;

  bool is_synced_ = true;
  bool follows_arrivals_ = false;
  std::vector<int64_t> expected_;  // static graph: gradients in a backward
  std::vector<bool> is_used_;      // by any rank; empty: all are
  PackedTensors packed_buffers_;

  std::mutex mutex_;  // what follows, for autograd's threads
  WatchedForwards forwards_;
  int unsynced_task_ = -1;  // a backward that is known to be no pass
  std::shared_ptr<LocalGradients> local_;
  std::optional<Pass> pass_;
  std::string failure_;
  std::optional<GradientHooks> hooks_;
  std::optional<GradientBuckets> buckets_;  // last, so that it ends first
};

}  // namespace lockstep::ddp
