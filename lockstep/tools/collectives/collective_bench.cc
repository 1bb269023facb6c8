#include "lockstep/tools/collectives/collective_bench.h"

#include <algorithm>
#include <map>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tools/collectives/pytorch_collectives.h"
#include "lockstep/train/run_report.h"

namespace lockstep::tools {
namespace {

// Short calls are timed in batches that move about this many bytes.
constexpr int64_t kBatchBytes = 1 << 20;
constexpr int64_t kMaxBatch = 64;
constexpr int64_t kLargeBytes = 32 << 20;
constexpr size_t kMaxElementBytes = 16;
constexpr const char* kResident = "shm resident";
constexpr const char* kPeer = "PyTorch";

/// A way to do the collective.
struct Way {
  std::string name;
  ProcessGroup group;
  bool is_resident = false;
  bool is_pytorch = false;  ///< timed by PyTorchCollectives instead
};

ProcessGroup make_group(const std::string& backend) {
  ProcessGroupOptions options;
  options.backend(backend);
  return init(options);
}

/// The process groups of a rank, and the ways to do the collective over them.
struct Ways {
  explicit Ways(const CollectiveBenchOptions& options) {
    if (options.with_shm) add_shm(options);
    if (options.with_tcp) add_tcp();
    if (all.empty()) {
      throw InvalidArgument("bench", {.code = ErrorCode::kMisuse,
                                      .what = "no backend was chosen",
                                      .expected = "shm, tcp or both"});
    }
    if (control.size() < 2) {
      throw InvalidArgument(
          "bench", {.code = ErrorCode::kBadOption,
                    .what = "there is nothing to time with one rank",
                    .expected = "a job of at least 2",
                    .fix = "start it with --nproc 2, or by a launcher"});
    }
    if (options.with_pytorch) {
      pytorch = std::make_unique<PyTorchCollectives>(control);
      all.push_back({.name = kPeer, .group = control, .is_pytorch = true});
    }
  }

  void add_shm(const CollectiveBenchOptions& options) {
    control = make_group("shm");
    if (options.with_resident && options.collective == Collective::kAllReduce) {
      // A message has at least one element per rank.
      const int64_t most = *std::ranges::max_element(options.sizes);
      memory = control.shared_memory(static_cast<size_t>(most) +
                                     static_cast<size_t>(control.size()) *
                                         kMaxElementBytes);
      all.push_back({.name = kResident, .group = control, .is_resident = true});
    }
    // A separate group. Without shared memory it does not check where tensors
    // are.
    all.push_back({.name = "shm", .group = make_group("shm")});
  }

  void add_tcp() {
    const ProcessGroup tcp = make_group("tcp");
    if (all.empty()) control = tcp;
    all.push_back({.name = "tcp", .group = tcp});
  }

  std::vector<Way> all;
  ProcessGroup control;  ///< for the messages that the benchmark itself needs
  std::optional<SharedMemory> memory;           ///< for is_resident
  std::unique_ptr<PyTorchCollectives> pytorch;  ///< for is_pytorch
};

/// The rounds of one message size.
class SizeBench {
 public:
  SizeBench(const CollectiveBenchOptions& options, const Ways& ways,
            int64_t bytes)
      : ways_(ways),
        count_(rounded_count(bytes, options.type, ways.control.size())),
        type_(options.type),
        case_(options.collective, count_, options.type, ways.control.rank(),
              ways.control.size()),
        plain_(case_.make_buffers()),
        checks_data_(options.checks_data) {
    bytes_ = count_ * static_cast<int64_t>(c10::elementSize(options.type));
    batch_ = std::clamp<int64_t>(kBatchBytes / bytes_, 1, kMaxBatch);
    if (ways.memory) {
      // At the same place in every rank's memory.
      const at::Tensor memory =
          ways.memory->tensor(ways.control.rank(), 0, {count_}, type_);
      resident_ = {memory, memory};
    }
    times_.resize(ways.all.size());
    wrong_.resize(ways.all.size());
  }

  /// Runs every way once, and then the two operations that define the ceiling.
  void round(bool is_timed) {
    for (size_t i = 0; i < ways_.all.size(); ++i) {
      const Way& way = ways_.all[i];
      if (way.is_pytorch) {
        const double seconds =
            ways_.pytorch->time(case_.collective(), count_, type_, batch_);
        if (is_timed) times_[i].push_back(seconds);
        continue;
      }
      CollectiveBuffers& buffers = way.is_resident ? resident_ : plain_;
      if (checks_data_) check(way, buffers, wrong_[i]);
      // Zeros stay zeros in any number of sums.
      buffers.input.zero_();
      buffers.output.zero_();
      const double seconds = time([&] { case_.run(way.group, buffers); });
      if (is_timed) times_[i].push_back(seconds);
    }
    // Each is run once before it is timed, so that the caches are as warm as
    // for the collectives.
    case_.copy_over(plain_);
    const double copy = time([&] { case_.copy_over(plain_); });
    case_.update_in_place(plain_);
    const double update = time([&] { case_.update_in_place(plain_); });
    if (!is_timed) return;
    copy_times_.push_back(copy);
    update_times_.push_back(update);
  }

  CollectiveSize result(double factor) const {
    CollectiveSize size{.bytes = bytes_, .count = count_};
    std::map<std::string, double> times;
    for (size_t i = 0; i < ways_.all.size(); ++i) {
      CollectiveFigure figure{.way = ways_.all[i].name};
      figure.time_s = median_of_slowest(times_[i]);
      figure.algorithm_gb_s = static_cast<double>(bytes_) / figure.time_s / 1e9;
      figure.bus_gb_s = figure.algorithm_gb_s * factor;
      if (checks_data_ && !ways_.all[i].is_pytorch) {
        figure.wrong = sum(wrong_[i]);
      }
      times[figure.way] = figure.time_s;
      size.figures.push_back(figure);
    }
    if (const auto peer = times.find(kPeer); peer != times.end()) {
      for (auto& figure : size.figures) {
        figure.speedup = peer->second / figure.time_s;
      }
    }
    size.copy_s = median_of_slowest(copy_times_);
    size.update_s = median_of_slowest(update_times_);
    return size;
  }

 private:
  static int64_t rounded_count(int64_t bytes, at::ScalarType type, int ranks) {
    const auto element = static_cast<int64_t>(c10::elementSize(type));
    return std::max<int64_t>(1, bytes / element / ranks) * ranks;
  }

  void check(const Way& way, CollectiveBuffers& buffers, int64_t& wrong) {
    case_.fill(buffers);
    // Other ranks read and write a resident buffer.
    ways_.control.barrier();
    case_.run(way.group, buffers);
    wrong += case_.count_wrong(buffers);
    ways_.control.barrier();
  }

  /// Returns the seconds of one call of `act`.
  template <typename Act>
  double time(const Act& act) {
    ways_.control.barrier();
    const Stopwatch watch;
    for (int64_t i = 0; i < batch_; ++i) act();
    return watch.seconds() / static_cast<double>(batch_);
  }

  double median_of_slowest(const std::vector<double>& own) const {
    at::Tensor seconds = torch::tensor(own, torch::kFloat64);
    ways_.control.all_reduce(seconds, ReduceOp::MAX);
    const auto* first = seconds.const_data_ptr<double>();
    return training::summarize({first, first + seconds.numel()}).median;
  }

  int64_t sum(int64_t own) const {
    at::Tensor total = torch::full({1}, own, torch::kInt64);
    ways_.control.all_reduce(total);
    return total.item<int64_t>();
  }

  const Ways& ways_;
  int64_t count_;
  int64_t bytes_ = 0;
  int64_t batch_ = 1;
  at::ScalarType type_;
  CollectiveCase case_;
  CollectiveBuffers plain_;
  CollectiveBuffers resident_;
  bool checks_data_;
  std::vector<std::vector<double>> times_;  // by way, then by round
  std::vector<double> copy_times_, update_times_;
  std::vector<int64_t> wrong_;
};

}  // namespace

int64_t CollectiveReport::wrong() const {
  int64_t sum = 0;
  for (const auto& size : sizes) {
    for (const auto& figure : size.figures) sum += figure.wrong.value_or(0);
  }
  return sum;
}

CollectiveReport run_collective_bench(
    const CollectiveBenchOptions& options,
    const std::function<void(const CollectiveReport&)>& on_size) {
  const torch::NoGradGuard no_grad;
  const Ways ways(options);
  CollectiveReport report{
      .collective = options.collective,
      .type = std::string(c10::getDtypeNames(options.type).first),
      .ranks = ways.control.size(),
      .is_checked = options.checks_data};
  for (const int64_t bytes : options.sizes) {
    SizeBench bench(options, ways, bytes);
    const int64_t rounds =
        options.iterations.value_or(bytes > kLargeBytes ? 5 : 20);
    for (int64_t i = 0; i < options.warmup; ++i) bench.round(false);
    for (int64_t i = 0; i < rounds; ++i) bench.round(true);
    report.sizes.push_back(
        bench.result(bus_factor(options.collective, report.ranks)));
    on_size(report);
  }
  return report;
}

std::optional<double> share_of_ceiling(const CollectiveReport& report,
                                       const CollectiveSize& size) {
  if (report.collective != Collective::kAllReduce) return std::nullopt;
  for (const auto& figure : size.figures) {
    if (figure.way == kResident) return size.ceiling_s() / figure.time_s;
  }
  return std::nullopt;
}

double ceiling_gb_s(const CollectiveReport& report,
                    const CollectiveSize& size) {
  return 2.0 * report.ranks * static_cast<double>(size.bytes) /
         size.ceiling_s() / 1e9;
}

}  // namespace lockstep::tools
