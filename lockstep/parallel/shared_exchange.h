#pragma once

#include <span>
#include <vector>

#include "lockstep/comm/shared_memory.h"
#include "lockstep/device/donated_memory.h"
#include "lockstep/parallel/rank_exchange.h"

namespace lockstep {

/// Of ranks on one host. Rank 0's memory holds what there is once: parameters,
/// optimizer state, buffers. Each rank's own holds its partial gradients and a
/// table that says where they are.
class SharedExchange : public RankExchange {
 public:
  SharedExchange(const World& world, const ModuleHandle& module,
                 std::vector<torch::Tensor> parameters, int64_t shards,
                 const std::vector<Device>& devices, int64_t most_partials);

  void load_buffers() override;
  Reduction reduce(std::vector<PartialSum> own, int64_t chunks,
                   StepTotals& totals) override;
  ShardRange own_blocks(int64_t count) const override;
  void share(std::vector<double>& values) override;
  void end_step() override;
  torch::Tensor make_state(const torch::Tensor& parameter) override;
  int64_t copy_bytes() const override;

 private:
  /// At the start of a rank's memory; arrays follow it.
  struct Table {
    int64_t samples;
    int64_t partials;
    int64_t needs_grad;  // StepTotals::needs_grad, as 0 or 1
    struct Range {
      int64_t first, last;
    };
  };
  /// A gradient of another rank (or this one) as it was last seen.
  struct Seen {
    int64_t place = -1;
    torch::Tensor tensor;
  };

  /// The next bytes of rank 0's memory.
  size_t take(size_t bytes);
  /// In rank 0's memory, laid out like `tensor`.
  torch::Tensor like_at(const torch::Tensor& tensor, size_t offset);
  /// Lets gradients be made in this rank's memory.
  void donate(const std::vector<Device>& devices);
  /// Where `gradient` can be seen by all: where it is, or where it is copied.
  int64_t place(const torch::Tensor& gradient, size_t partial, size_t index);
  Table& table(int rank) const;
  std::span<double> losses(int rank) const;
  /// Where in rank's memory its gradients are; -1: it has none.
  std::span<int64_t> places(int rank, size_t partial) const;
  /// The shards of its partial sums.
  std::span<Table::Range> ranges(int rank) const;
  std::span<double> values(int rank) const;
  void publish(const std::vector<PartialSum>& own, const StepTotals& totals);
  PartialSum partial_of(int rank, size_t partial);
  const torch::Tensor& gradient_at(int rank, size_t partial, size_t index,
                                   int64_t place);

  World world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  int64_t shards_;
  size_t most_partials_;
  size_t most_values_;

  SharedMemory common_;  // rank 0's
  size_t taken_ = 0;
  std::vector<torch::Tensor> kept_buffers_;  // in common_

  // Each rank's own: the table, room for copies of gradients, and memory in
  // which most of them are made.
  SharedMemory memory_;
  size_t copies_at_ = 0;
  size_t donated_at_ = 0;
  std::vector<DonatedMemory> donated_;   // of each device, in memory_
  std::vector<size_t> copy_at_;          // of each parameter, from copies_at_
  std::vector<bool> is_copied_;          // ever; [partial, parameter]
  std::vector<PartialSum> published_;    // others read them until end_step()
  std::vector<std::vector<Seen>> seen_;  // [rank][partial, parameter]
};

}  // namespace lockstep
