#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/queue/work_queue.h"
#include "lockstep/comm/world.h"
#include "lockstep/parallel/ddp/options.h"
#include "lockstep/parallel/ddp/parameter_changes.h"
#include "lockstep/parallel/exchange/buckets.h"
#include "lockstep/parallel/exchange/comm_stream.h"
#include "lockstep/parallel/exchange/packed_tensors.h"
#include "lockstep/parallel/module/module_handle.h"

namespace lockstep::ddp {

/// Sums the gradients of a model over the ranks while the backward computes
/// them: DistributedDataParallel without the module's type.
///
/// A backward that goes through a synced forward is a *pass*, whatever the loss
/// is made of: outputs, derivatives of outputs, or what the forward computed
/// inside. A forward is known in the graph by the nodes behind its outputs and
/// by the numbers that autograd gave to the nodes it made.
///
/// A pass opens before the first gradient is added to a parameter. Each
/// gradient is copied into its bucket as it arrives; a full bucket is exchanged
/// by a thread of the reducer's own, in a group of its own, in the order of the
/// buckets. When the backward ends, .grad holds the result.
///
/// One thread at a time calls it; autograd's may be several.
class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  /// Collective. Throws InvalidArgument if the ranks' modules differ.
  static std::shared_ptr<Reducer> create(
      const World& world, ModuleHandle module,
      const DistributedDataParallelOptions& options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Before a forward under autograd. What it returns is for end_forward().
  uint64_t begin_forward();
  /// After it: a backward through what was computed in between, which was of
  /// `samples` samples, is a pass.
  void end_forward(uint64_t begin, int64_t samples);
  /// An output of that forward, such that a backward through it or through its
  /// derivatives is a pass.
  torch::Tensor watch(const torch::Tensor& output, int64_t samples);

  bool is_synced() const { return is_synced_; }
  /// Off: forwards are not watched, so that gradients stay this rank's.
  void set_synced(bool on) { is_synced_ = on; }
  void set_hook(CommHook hook);
  void join(const std::function<void()>& steps, const JoinOptions& options);

  /// Buckets as they are now: each one's parameters, by place.
  std::vector<std::vector<size_t>> assignment() const;

 private:
  class OutputNode;
  class BeforeGradient;
  class Ending;
  using Work = c10::intrusive_ptr<c10d::Work>;

  struct Forward {
    int64_t number = 0;
    int64_t samples = 0;
  };
  /// How autograd numbers the nodes of graphs: by thread, and in a thread in
  /// the order in which they are made.
  using NodeId = std::pair<uint64_t, uint64_t>;
  /// The nodes that a forward made: from a NodeId to before `end`.
  struct ForwardNodes {
    uint64_t end = 0;
    Forward forward;
  };

  struct Hooks {
    size_t p = 0;
    std::weak_ptr<torch::autograd::Node> accumulator;
    uintptr_t after = 0;
    torch::autograd::FunctionPreHook* before = nullptr;
  };

  /// Where parameter p's gradient goes.
  struct Slot {
    size_t bucket = 0;
    size_t index = 0;
  };
  /// What the ranks agreed on before a pass.
  struct Round {
    double weight = 1;        ///< of this rank's gradients in the sum
    int root = 0;             ///< whose buffers count
    std::vector<int> active;  ///< ranks that have inputs; within join()
  };
  struct Pass {
    int task = 0;  ///< autograd's number of the backward
    Round round;
    bool is_shadow = false;        ///< of a rank without inputs
    bool only_counts = false;      ///< a static graph's first
    std::vector<int64_t> awaited;  ///< gradients that parameter p still lacks
    std::vector<size_t> missing;   ///< parameters that got an undefined one
    std::vector<size_t> pending;   ///< parameters that bucket b still lacks
    size_t next_bucket = 0;        ///< to be exchanged
    std::vector<size_t> arrivals;
    std::vector<bool> has_gradient;
    /// .grad of before, where a sum over the ranks would change it.
    std::vector<torch::Tensor> kept;
    torch::Tensor is_used;  ///< by parameter: a byte; over all ranks at last
    /// The fingerprint of what this rank did to its parameters, and its
    /// complement; the largest of all ranks' at last.
    torch::Tensor changes;
    std::vector<Work> works;
  };
  struct Joining {
    JoinOptions options;
    std::vector<int> last_active;
    bool is_ended = false;  ///< by throw_on_early_termination
  };

  Reducer(const World& world, ModuleHandle module,
          const DistributedDataParallelOptions& options);
  /// Hooks into the node of p that autograd has now.
  void hook(size_t p);
  /// Follows what replaced a parameter's memory (torch::load). Throws for
  /// another type, device or shape, and for what trains only now.
  void follow_parameters();
  void lay_out(const std::vector<size_t>& order);
  void follow_arrivals(int root, const std::vector<size_t>& arrivals);
  Round next_round(const Forward& reached);
  Round agree(bool is_active, int64_t samples);
  void note_active(const std::vector<int>& active);
  void check_usable() const;
  /// Ends the other ranks' waits and throws.
  [[noreturn]] void give_up(const Problem& problem);
  std::string names_of(const std::vector<size_t>& places) const;

  // In the graph.
  torch::Tensor put_node(const torch::Tensor& tensor, const Forward& forward);
  /// The synced forward that made the node; nullptr if none did.
  const Forward* forward_of(const torch::autograd::Node& node) const;
  /// A synced forward that this backward goes through; nullptr if none.
  const Forward* forward_in_backward() const;
  /// Of all synced forwards that this backward goes through. `reached` is one
  /// of them: the node that a backward starts from is not in autograd's list.
  int64_t samples_in_backward(const Forward& reached) const;
  /// Parameters that this backward gives no gradient. Nothing if it gives none
  /// to any, as torch::autograd::grad() does.
  std::optional<std::vector<size_t>> unused_in_backward();
  void check_unreplaced(size_t p);

  // In the backward.
  void on_output(const Forward& forward);
  void before_gradient(size_t p);
  void on_gradient(size_t p, const torch::Tensor& incoming);
  void on_unsynced_gradient(size_t p, const torch::Tensor& incoming);
  Pass new_pass(const Round& round) const;
  void open_pass(int task, const Forward& reached);
  bool sums_to_average() const;
  void set_aside();
  void note_mixture(size_t p);
  /// Gives p a .grad in memory of its own, if autograd took `incoming` for it
  /// and others hold that memory as well.
  void own_gradient(size_t p, const torch::Tensor& incoming);
  void send_buffers();
  void arrive(size_t p, bool has_gradient);
  void fill_slot(size_t p, bool has_gradient);
  void exchange_full_buckets();
  void run_hook(GradBucket& grads);
  /// Has the reducer's thread do `task`, after what is computed by now. Its
  /// name (a literal) and index are those of a TraceSpan.
  void submit(const char* name, int64_t index,
              const std::function<void()>& task);
  void close_pass();
  void finish_pass();
  void check_complete();
  void exchange_changes();
  /// Throws if the ranks did different things to their parameters, such that
  /// those differ now.
  void check_same_parameters();
  void exchange_used();
  void settle_static_graph();
  void wait_for_works();
  void write_back();
  void abandon() noexcept;
  void shadow(const Round& round);

  DistributedDataParallelOptions options_;
  World world_;  // of this reducer alone
  ModuleHandle module_;
  std::vector<std::string> names_;
  std::vector<torch::Tensor> parameters_;  // that train, each once
  ModuleHandle::Named frozen_;             // that did not at the wrap
  torch::Device device_ = torch::kCPU;
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
  std::vector<Hooks> hooks_;  // in those, and in earlier ones that graphs have
  ParameterChanges changes_;
  CommHook hook_;
  std::optional<CommStream> stream_;

  bool is_synced_ = true;
  int64_t forward_count_ = 0;
  std::optional<Joining> joining_;
  std::vector<Bucket> buckets_;
  std::vector<Slot> slots_;
  bool follows_arrivals_ = false;
  std::vector<int64_t> expected_;  // static graph: gradients in a backward
  std::vector<bool> is_used_;      // by any rank; empty: all are
  PackedTensors packed_buffers_;

  std::mutex mutex_;  // what follows, for autograd's threads
  std::map<NodeId, ForwardNodes> forwards_;
  std::deque<NodeId> by_age_;      // of forwards_
  int unsynced_task_ = -1;         // a backward that is known to be no pass
  std::vector<bool> is_unsynced_;  // p's .grad has a part of this rank's own
  std::vector<bool> is_mixed_;     // kNone: and a sum over the ranks as well
  std::optional<Pass> pass_;
  std::string failure_;
  WorkQueue queue_;  // last, so that it ends first
};

}  // namespace lockstep::ddp
