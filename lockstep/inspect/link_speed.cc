#include "lockstep/inspect/link_speed.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/median.h"
#include "lockstep/base/stopwatch.h"
#include "lockstep/device/accelerator.h"
#include "lockstep/device/links/device_copy.h"
#include "lockstep/device/worker.h"

namespace lockstep::inspect {
namespace {

using torch::Tensor;

// One end of a link: memory on the device, and a thread that runs there.
struct End {
  Device device;
  Worker worker;
  Tensor out, in;

  End(const Device& place, int64_t bytes) : device(place), worker(place, 1) {
    run([&] {
      const auto like =
          torch::TensorOptions(torch::kUInt8).device(torch_device(device));
      out = torch::ones({bytes}, like);
      in = torch::zeros({bytes}, like);
    });
  }
  void start(const std::function<void()>& task) {
    worker.start([this, task] {
      const torch::NoGradGuard no_grad;
      task();
      accelerator::synchronize(device);
    });
  }
  void run(const std::function<void()>& task) {
    start(task);
    worker.wait();
  }
};

double median_time(int count, const std::function<void()>& act) {
  std::vector<double> seconds;
  act();  // maps memory and enables peer access
  for (int i = 0; i < count; ++i) {
    const Stopwatch watch;
    act();
    seconds.push_back(watch.seconds());
  }
  return median(std::move(seconds));
}

// The cache line that the two threads pass back and forth.
struct alignas(64) Ball {
  std::atomic<int> turn{0};
};

constexpr int kGameOver = -1;

// Waits for `turn` and returns true, or returns false if the other thread has
// ended the game. It yields after a while, because both slices may be on the
// same core, where the other thread could not run otherwise.
bool await(const Ball& ball, int turn) {
  constexpr int kSpins = 2000;
  for (int i = 0;; ++i) {
    const int now = ball.turn.load(std::memory_order_acquire);
    if (now == turn) return true;
    if (now == kGameOver) return false;
    if (i >= kSpins) std::this_thread::yield();
  }
}

double latency_of_slices(End& from, End& to) {
  constexpr int kRounds = 2000;
  constexpr double kMaxSeconds = 0.2;  // reached only on busy cores
  Ball ball;
  double seconds = 0;
  int rounds = 0;
  to.start([&] {
    for (int i = 0; await(ball, 2 * i + 1); ++i) {
      ball.turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  from.start([&] {
    const Stopwatch watch;
    while (rounds < kRounds && watch.seconds() < kMaxSeconds) {
      ball.turn.store(2 * rounds + 1, std::memory_order_release);
      await(ball, 2 * rounds + 2);
      ++rounds;
    }
    seconds = watch.seconds();
    ball.turn.store(kGameOver, std::memory_order_release);
  });
  from.worker.wait();
  to.worker.wait();
  return seconds / std::max(rounds, 1) / 2;
}

double latency_of_devices(const Link& link, End& from, End& to) {
  constexpr int kCopies = 200;
  Tensor in = to.in.narrow(0, 0, 4);
  const Tensor out = from.out.narrow(0, 0, 4);
  return median_time(kCopies,
                     [&] { to.run([&] { copy_over(link, in, out); }); });
}

LinkSpeed measure(const Link& link, const LinkSpeedOptions& options) {
  End from(link.from, options.bytes), to(link.to, options.bytes);
  const Link back{link.to, link.from};
  const auto bytes = static_cast<double>(options.bytes);
  LinkSpeed speed{.link = link};
  speed.bytes_per_s = bytes / median_time(options.copies, [&] {
                        to.run([&] { copy_over(link, to.in, from.out); });
                      });
  speed.both_bytes_per_s =
      2 * bytes / median_time(options.copies, [&] {
        to.start([&] { copy_over(link, to.in, from.out); });
        from.start([&] { copy_over(back, from.in, to.out); });
        to.worker.wait();
        from.worker.wait();
      });
  speed.staged_bytes_per_s =
      bytes / median_time(options.copies, [&] {
        to.run([&] { to.in.copy_(from.out.to(torch::kCPU)); });
      });
  speed.latency_s = link.to.is_cpu() ? latency_of_slices(from, to)
                                     : latency_of_devices(link, from, to);
  return speed;
}

}  // namespace

std::vector<LinkSpeed> measure_links(
    std::span<const Link> links, const LinkSpeedOptions& options,
    const std::function<void(const Link&)>& on_link) {
  std::vector<LinkSpeed> speeds;
  for (const Link& link : links) {
    if (on_link) on_link(link);
    speeds.push_back(measure(link, options));
  }
  return speeds;
}

void add_measured_connections(Topology& topology,
                              std::span<const LinkSpeed> speeds) {
  // A copy through the host is two copies, each of them as fast as one between
  // devices at best.
  constexpr double kClearlyFaster = 1.4;
  const auto find = [&](const std::string& from, const std::string& to) {
    return std::ranges::find_if(speeds, [&](const LinkSpeed& speed) {
      return speed.link.from.name() == from && speed.link.to.name() == to;
    });
  };
  const auto is_faster = [](const LinkSpeed& speed) {
    return speed.bytes_per_s > kClearlyFaster * speed.staged_bytes_per_s;
  };
  for (size_t i = 0; i < topology.devices.size(); ++i) {
    for (size_t j = 0; j < topology.devices.size(); ++j) {
      Connection& cell = topology.connections[i][j];
      if (cell.kind != ConnectionKind::kUnknown) continue;
      const auto there =
          find(topology.devices[i].name, topology.devices[j].name);
      const auto back =
          find(topology.devices[j].name, topology.devices[i].name);
      if (there == speeds.end() || back == speeds.end()) continue;
      cell.kind = is_faster(*there) && is_faster(*back) ? ConnectionKind::kPeer
                                                        : ConnectionKind::kHost;
    }
  }
}

}  // namespace lockstep::inspect
