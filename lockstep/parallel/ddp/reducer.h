#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/ddp/ddp_options.h"
#include "lockstep/parallel/ddp/gradient_hooks.h"
#include "lockstep/parallel/ddp/rounds.h"
#include "lockstep/parallel/ddp/trained_parameters.h"
#include "lockstep/parallel/ddp/watched_forwards.h"
#include "lockstep/parallel/exchange/common_state.h"
#include "lockstep/parallel/exchange/gradient_sync.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/module/module_handle.h"
#include "lockstep/parallel/reduction/local_gradients.h"

namespace lockstep::ddp {

/// Sums the gradients of a model over the ranks during the user's own backward.
/// It is the untyped implementation of DistributedDataParallel.
///
/// A backward that goes through a synced forward (WatchedForwards) is a *pass*.
/// It opens before the first gradient is added to a parameter (GradientHooks).
/// Each gradient is copied into its bucket when it is complete. Full buckets
/// are summed during the backward (GradientSync), in the reducer's own process
/// group. When the backward ends, .grad holds the result.
///
/// A pass expects one gradient of each parameter that its graph reaches. That
/// of a static graph expects as many as the first pass had, which therefore
/// keeps all gradients until its backward ends.
///
/// Calls must come from one thread at a time. Autograd may use several threads.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Makes a reducer. Collective. `local` is that of the wrapper. Throws
  /// ParallelError if the modules of the ranks differ.
  static std::shared_ptr<Reducer> create(
      const ProcessGroup& world, ModuleHandle module,
      const DistributedDataParallelOptions& options,
      std::shared_ptr<LocalGradients> local);
  ~Reducer() = default;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Must be called before a forward under autograd. Pass the result to
  /// end_forward().
  uint64_t begin_forward();
  /// Must be called after the forward. A backward through anything computed in
  /// between, from `samples` samples, is a pass.
  void end_forward(uint64_t begin, int64_t samples);
  /// Returns an output of that forward such that a backward through it or
  /// through its derivatives is a pass. Its graph keeps the reducer alive.
  torch::Tensor watch(const torch::Tensor& output, int64_t samples);

  void set_hook(CommHook hook) { sync_->buckets().set_hook(std::move(hook)); }
  void join(const std::function<void()>& steps, const JoinOptions& options);
  bool is_joining() const { return rounds_.is_joining(); }

  /// Tells the other ranks that this one makes no further passes, because of
  /// an exception.
  void leave() noexcept;

  /// Returns the current buckets, each a list of parameter indices.
  std::vector<std::vector<size_t>> assignment() const {
    return sync_->buckets().assignment();
  }

 private:
  /// Place of this rank's gradient of a parameter in a pass.
  enum class Place {
    kNone,     ///< nowhere: it got none, or an undefined one
    kGrad,     ///< in .grad, because it is not complete
    kBucket,   ///< in its bucket
    kInPlace,  ///< in .grad, which is summed in place
  };
  struct Pass {
    int task = 0;  ///< autograd's id of the backward
    Round round;
    bool is_shadow = false;     ///< pass of a rank without inputs
    std::vector<Place> places;  ///< by parameter
    /// Earlier values of .grad that a sum over the ranks would change.
    std::vector<torch::Tensor> kept;
    torch::Tensor is_used;  ///< one byte per parameter; after the exchange,
                            ///< over all ranks
    /// Numbers that the ranks compare: comparison_of() the fingerprint of this
    /// rank's changes to its parameters and of the next part of their values.
    /// After the exchange, the maximum over all ranks.
    torch::Tensor comparison;
    CommonState::Contents state;  // that is compared
  };

  Reducer(const ProcessGroup& world, ModuleHandle module,
          const DistributedDataParallelOptions& options,
          std::shared_ptr<LocalGradients> local);
  /// Hooks parameters again after their memory was replaced (torch::load).
  /// Throws if a parameter changed its type, device or shape, or started to
  /// require a gradient.
  void follow_parameters();
  /// Puts the buckets into the order in which the gradients of the first pass
  /// arrived on rank `root`.
  void follow_order(int root);
  void check_usable() const;
  /// Makes the other ranks stop waiting, and throws.
  [[noreturn]] void give_up(const Problem& problem);

  // Called during the backward.
  void on_output(const WatchedForwards::Forward& forward);
  void before_gradient();
  void on_gradient(size_t p, const torch::Tensor& incoming);
  /// Starts a pass in which `expected` gradients of each parameter will arrive.
  void begin_pass(const Round& round, const std::vector<int64_t>& expected);
  void open_pass(int task, const WatchedForwards::Forward& reached);
  /// Returns the parameters that get no gradient from this backward, or nothing
  /// if this backward is not a pass. Throws if parameters must not be unused.
  std::optional<std::vector<size_t>> check_unused();
  /// Sends the gradient of parameter `p`, or zeros if there is no gradient.
  /// `incoming` is the gradient that autograd just added to .grad, if any.
  void send(size_t p, bool has_gradient, const torch::Tensor& incoming = {});
  /// Copies the weighted gradient of `p` into its bucket.
  void fill_bucket(size_t p, bool has_gradient);

  /// Prepares, before a pass, what earlier backward passes and steps left in
  /// .grad.
  void prepare_earlier_gradients();

  /// Returns whether all parameters are frozen now, and a part of the module is
  /// in training mode.
  bool trains_buffers_only() const;
  /// Gives every rank the buffers of rank 0 at the end of backward `task`,
  /// which is not a pass, if trains_buffers_only(). The forward of a
  /// discriminator that a generator trains with changes them.
  void share_buffers_after(int task);
  void share_buffers();

  // Send data to the other ranks besides the gradients.
  void send_buffers();
  void compare_ranks();
  void exchange_used();

  // Called at the end of the backward.
  void close_pass();
  void finish_pass();
  void check_complete();
  /// Throws if compare_ranks() showed that the ranks' parameters differ.
  void check_same_parameters();
  /// Returns whether this is the first pass of a static graph, which counts the
  /// gradients of each parameter.
  bool is_counting() const { return expected_[0] == kUntilFlush; }
  void write_back();
  /// Cleans up after a backward that threw.
  void abandon() noexcept;
  /// Makes the other ranks stop, because a backward of this one threw.
  void give_up_backward() noexcept;
  /// Makes the pass of a rank without inputs, in join().
  void shadow(const Round& round);

  DistributedDataParallelOptions options_;
  ProcessGroup world_;  // used only by this reducer
  ModuleHandle module_;
  TrainedParameters trained_;
  const std::vector<torch::Tensor>& parameters_;  // trained_.parameters
  ParameterChanges changes_;
  CommonState common_state_;
  Rounds rounds_;

  // Gradients of each parameter in a pass that reaches all of them. Of a static
  // graph, kUntilFlush until they are known.
  std::vector<int64_t> expected_;
  std::vector<bool> is_used_;  // by any rank; empty: all are used
  PackedTensors packed_buffers_;

  std::mutex mutex_;  // guards the members below against autograd's threads
  WatchedForwards forwards_;
  int unsynced_task_ = -1;  // a backward that is known not to be a pass
  int buffers_task_ = -1;   // the last one of share_buffers_after()
  std::shared_ptr<LocalGradients> local_;
  std::optional<Pass> pass_;
  std::string failure_;
  std::optional<GradientHooks> hooks_;
  std::optional<GradientSync> sync_;  // destroyed first
};

}  // namespace lockstep::ddp
