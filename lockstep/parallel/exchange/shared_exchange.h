#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/collectives/shared_memory.h"
#include "lockstep/device/donated_memory.h"
#include "lockstep/parallel/exchange/rank_exchange.h"

namespace lockstep {

/// Of ranks on one host. Rank 0's memory holds what there is once: parameters,
/// optimizer state, buffers. Each rank's own holds its partial gradients and a
/// table that says where they are.
///
/// The module's parameters lie in rank 0's memory only while the engine updates
/// them: a change by any other writer (an optimizer of each rank's own) would
/// come once for each rank.
class SharedExchange : public RankExchange {
 public:
  SharedExchange(const World& world, const ModuleHandle& module,
                 std::vector<torch::Tensor> parameters, int64_t shards,
                 const std::vector<Device>& devices, int64_t most_partials);
  ~SharedExchange() override;
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  void begin_step(bool is_driven) override;
  void unshare_parameters() override;
  bool shares_memory() const override { return true; }
  void load_buffers() override;
  void forget_buffers() override;
  Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                   StepTotals& totals) override;
  std::vector<size_t> own_blocks(
      const std::vector<optim::Block>& blocks,
      const std::vector<size_t>& positions) const override;
  void share(std::vector<double>& values) override;
  std::vector<torch::Tensor> whole_sums(
      std::vector<torch::Tensor> sums) override;
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;
  int64_t copy_bytes() const override;

 private:
  /// At the start of a rank's memory; arrays follow it.
  struct Table {
    int64_t samples;
    int64_t partials;
    int64_t needs_grad;      // StepTotals::needs_grad, as 0 or 1
    int64_t wants_to_share;  // 1 + the first parameter that is not shared
    struct Range {
      int64_t first, last;
    };
  };
  /// A gradient of another rank (or this one) as it was last seen.
  struct Seen {
    int64_t place = -1;
    torch::Tensor tensor;
  };

  /// Zeros in rank 0's memory, laid out like `tensor`.
  torch::Tensor take_like(const torch::Tensor& tensor);
  bool is_in_place(size_t p) const;
  void share_parameters(size_t first);
  /// Remembers what check_unchanged() compares.
  void note_parameters();
  void check_unchanged();
  /// Of ranks of which some only moved or changed their parameters.
  void check_requests(size_t first) const;
  [[noreturn]] void give_up(const Problem& problem) const;
  /// Where `gradient` can be seen by all: where it is, or where it is copied.
  int64_t place(const torch::Tensor& gradient, size_t partial, size_t index);
  Table& table(int rank) const;
  std::span<ShardLossTotal> losses(int rank) const;
  /// Where in rank's memory its gradients are; -1: it has none.
  std::span<int64_t> places(int rank, size_t partial) const;
  /// The shards of its partial sums.
  std::span<Table::Range> ranges(int rank) const;
  std::span<double> values(int rank) const;
  void publish(const std::vector<PartialSum>& own_partials,
               const StepTotals& totals);
  PartialSum partial_of(int rank, size_t partial);
  const torch::Tensor& gradient_at(int rank, size_t partial, size_t index,
                                   int64_t place);

  World world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::string> names_;  // of parameters_
  int64_t shards_;
  size_t most_partials_;
  size_t most_values_;

  SharedMemory common_;  // rank 0's
  size_t taken_ = 0;
  std::vector<torch::Tensor> shared_parameters_;  // in common_
  struct Seal {
    int64_t version = 0;
    uint64_t sample = 0;  // of the values
  };
  std::vector<Seal> seals_;  // of shared parameters, after the last step
  std::vector<torch::Tensor> kept_buffers_;  // in common_
  /// Where a buffer's values were after the last step, and which they were.
  struct BufferSeal {
    const void* data = nullptr;
    int64_t version = 0;
    bool operator==(const BufferSeal&) const = default;
  };
  static BufferSeal seal_of(const torch::Tensor& buffer);
  std::vector<BufferSeal> buffer_seals_;  // empty: no buffers are kept

  // Each rank's own: the table, room for copies of gradients, and memory in
  // which most of them are made.
  SharedMemory memory_;
  size_t copies_at_ = 0;
  std::vector<DonatedMemory> donated_;   // of each device, in memory_
  std::vector<size_t> copy_at_;          // of each parameter, from copies_at_
  std::vector<bool> is_copied_;          // ever; [partial, parameter]
  std::vector<PartialSum> published_;    // others read them until end_step()
  std::vector<std::vector<Seen>> seen_;  // [rank][partial, parameter]
};

}  // namespace lockstep
