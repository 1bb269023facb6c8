#pragma once

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/shared_memory.h"
#include "lockstep/device/donated_memory.h"
#include "lockstep/parallel/exchange/rank_exchange.h"

namespace lockstep {

/// Exchange between ranks on one host. Rank 0's memory holds the data that
/// exists once: parameters, optimizer state, buffers. Each rank's own memory
/// holds its partial gradients and a StepReport with their places.
///
/// The sums are not made here. After reduce() each rank reads the partial
/// gradients of all ranks where they are, sums its own blocks (own_blocks())
/// and updates them, so a gradient is not moved at all.
///
/// The module's parameters are in rank 0's memory only while the engine updates
/// them. A change by any other writer, such as a separate optimizer on each
/// rank, would be applied once by each rank.
class SharedExchange : public RankExchange {
 public:
  SharedExchange(const ProcessGroup& world, const ModuleHandle& module,
                 std::vector<torch::Tensor> parameters, int64_t shards,
                 const std::vector<Device>& devices, int64_t most_partials);
  ~SharedExchange() override;
  SharedExchange(const SharedExchange&) = delete;
  SharedExchange& operator=(const SharedExchange&) = delete;

  bool begin_step(bool is_driven) override;
  void meet() override;
  void unshare_parameters() override;
  bool shares_memory() const override { return true; }
  void load_buffers() override;
  void forget_buffers() override;
  Reduction reduce(std::vector<PartialSum> own_partials, int64_t chunks,
                   StepTotals& totals) override;
  bool divides_update() const override { return true; }
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
  /// The last known location of a rank's gradient.
  struct Seen {
    int64_t place = -1;
    torch::Tensor tensor;
  };

  /// Returns zeros in rank 0's memory, laid out like `tensor`.
  torch::Tensor take_like(const torch::Tensor& tensor);
  bool is_in_place(size_t p) const;
  void share_parameters(size_t first);
  void unshare_all();
  /// Records the state that check_unchanged() compares with.
  void note_parameters();
  void check_unchanged();
  /// Throws ParallelError if only some of the ranks moved their parameters, so
  /// that some are about to share them while others are in a step.
  /// StepReport::Header::wants_to_share has the answer of each rank. `first` is
  /// the first parameter of this rank that is not shared.
  void check_requests(size_t first) const;
  /// Waits until all ranks have written the report of a step.
  void wait_for_reports() const;
  [[noreturn]] void give_up(const Problem& problem) const;
  /// Returns an offset at which all ranks can read `gradient`: where it already
  /// is, or where it is copied to.
  int64_t place(const torch::Tensor& gradient, size_t partial, size_t index);
  /// The report at the start of the rank's memory.
  StepReport report(int rank) const;
  /// Values of share(), after the report.
  std::span<double> values(int rank) const;
  void publish(const std::vector<PartialSum>& own_partials,
               const StepTotals& totals);
  PartialSum partial_of(int rank, size_t partial);
  const torch::Tensor& gradient_at(int rank, size_t partial, size_t index);

  ProcessGroup world_;
  ModuleHandle::Named buffers_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::string> names_;  // names of parameters_
  StepReport::Shape report_shape_;
  size_t most_values_;

  SharedMemory common_;  // memory of rank 0
  size_t taken_ = 0;
  std::vector<torch::Tensor> shared_parameters_;  // in common_
  struct Seal {
    int64_t version = 0;
    uint64_t sample = 0;  // hash of some of the values
  };
  std::vector<Seal> seals_;  // of shared parameters, after the last step
  std::vector<torch::Tensor> kept_buffers_;  // in common_
  /// Address and version of a buffer after the last step.
  struct BufferSeal {
    const void* data = nullptr;
    int64_t version = 0;
    bool operator==(const BufferSeal&) const = default;
  };
  static BufferSeal seal_of(const torch::Tensor& buffer);
  std::vector<BufferSeal> buffer_seals_;  // empty: no buffers are kept

  // Memory of each rank: the report, values, room for copies of gradients, and
  // the memory in which most gradients are created.
  SharedMemory memory_;
  size_t copies_at_ = 0;
  std::vector<DonatedMemory> donated_;  // by device, in memory_
  std::vector<size_t> copy_at_;         // by parameter, offset from copies_at_
  std::vector<bool> is_copied_;         // since the start; [partial, parameter]
  std::vector<PartialSum> published_;   // read by other ranks until end_step()
  std::vector<std::vector<Seen>> seen_;  // [rank][partial, parameter]
};

}  // namespace lockstep
