#include "lockstep/device/links/link_check.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/base/format.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/device/cuda/cuda.h"
#include "lockstep/device/device.h"
#include "lockstep/device/links/special_links.h"
#include "lockstep/device/worker.h"

namespace lockstep {

using c10::impl::VirtualGuardImpl;
using torch::Tensor;

namespace {

constexpr auto kWord = static_cast<int64_t>(sizeof(uint64_t));
constexpr uint64_t kSentinel = 0xA5A5'5A5A'C3C3'3C3CULL;

// The finalizer of SplitMix64 (Steele, Lea, Flood, 2014). It is a bijection, so
// every place has a different word, and data that arrives at the wrong place is
// detected.
uint64_t word_at(uint64_t place, uint64_t round) {
  uint64_t x = place + (round + 1) * 0x9E37'79B9'7F4A'7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58'476D'1CE4'E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D0'49BB'1331'11EBULL;
  return x ^ (x >> 31);
}

uint64_t* words_of(const Tensor& tensor) {
  return static_cast<uint64_t*>(tensor.mutable_data_ptr());
}

Tensor pattern(int64_t words, int round) {
  Tensor host = torch::empty({words}, torch::kInt64);
  uint64_t* out = words_of(host);
  for (int64_t i = 0; i < words; ++i) {
    out[i] = word_at(static_cast<uint64_t>(i), static_cast<uint64_t>(round));
  }
  return host;
}

// A thread for each end of the link, so that memory of a slice is charged to
// it.
class Ends {
 public:
  explicit Ends(const Link& link)
      : from_(std::make_unique<Worker>(link.from, 1)),
        to_(std::make_unique<Worker>(link.to, 1)) {
    if (link.from.is_cpu() || link.to.is_cpu()) return;
    sender_ = VirtualGuardImpl(link.from.type)
                  .getStreamFromGlobalPool(torch_device(link.from));
  }

  void run_at_sender(const std::function<void()>& task) { run(*from_, task); }
  void run_at_receiver(const std::function<void()>& task) {
    run(*to_, [&] {
      // LibTorch copies in this thread's stream on the sender. In its default
      // stream, a copy that hangs would hold up those over the next links.
      if (sender_)
        VirtualGuardImpl(sender_->device_type()).exchangeStream(*sender_);
      task();
    });
  }

 private:
  static void run(Worker& worker, const std::function<void()>& task) {
    worker.start(task);
    worker.wait();
  }

  std::unique_ptr<Worker> from_, to_;
  std::optional<c10::Stream> sender_;  // if both ends are accelerators
};

void copy_by_loads(const Link& link, Tensor& destination,
                   const Tensor& source) {
  copy_directly(link, destination, [&] {
    if (!link.to.is_cpu() || !link.from.is_cpu()) {
      // If GPUs can't read each other's memory, no kernel can, so the copy
      // engine copies.
      const bool is_done = link.to.is_cuda() && link.from.is_cuda() &&
                           cuda::copy_by_kernel(destination, source);
      if (!is_done) destination.copy_(source);
      return;
    }
    const uint64_t* in = words_of(source);
    uint64_t* out = words_of(destination);
    for (int64_t i = 0; i < source.numel(); ++i) out[i] = in[i];
  });
}

// LibTorch has no operator that reads the memory of another device: kernels
// that do are written for one type of accelerator.
std::span<const CopyMethod> methods_for(const Link& link) {
  static constexpr CopyMethod kMethods[] = {CopyMethod::kCopyEngine,
                                            CopyMethod::kLoadsAndStores};
  const bool has_loads =
      link.from.type == link.to.type && (link.to.is_cpu() || link.to.is_cuda());
  return std::span(kMethods).first(has_loads ? 2 : 1);
}

std::optional<LinkFinding> compare(const LinkCopy& copy, const Tensor& arrived,
                                   const Tensor& expected) {
  const uint64_t* got = words_of(arrived);
  const uint64_t* wanted = words_of(expected);
  if (std::memcmp(got, wanted, expected.nbytes()) == 0) return std::nullopt;
  LinkFinding finding{.copy = copy, .kind = LinkFinding::Kind::kNotWritten};
  finding.first_byte = -1;
  for (int64_t i = 0; i < expected.numel(); ++i) {
    if (got[i] == wanted[i]) continue;
    if (finding.first_byte < 0) finding.first_byte = i * kWord;
    finding.wrong_bytes += kWord;
    if (got[i] != kSentinel) finding.kind = LinkFinding::Kind::kChanged;
  }
  return finding;
}

std::optional<LinkFinding> check_between(const LinkCopy& copy, int round,
                                         Ends& ends) {
  const torch::NoGradGuard no_grad;
  const Link& link = copy.link;
  const int64_t words = std::max<int64_t>(copy.bytes / kWord, 1);
  const Tensor expected = pattern(words, round);
  Tensor source, destination, arrived;
  ends.run_at_sender([&] {
    source = torch::empty(
        {words},
        torch::TensorOptions(torch::kInt64).device(torch_device(link.from)));
    source.copy_(expected);
  });
  ends.run_at_receiver([&] {
    destination = torch::full(
        {words}, static_cast<int64_t>(kSentinel),
        torch::TensorOptions(torch::kInt64).device(torch_device(link.to)));
    if (copy.method == CopyMethod::kCopyEngine) {
      copy_directly(link, destination, [&] { destination.copy_(source); });
    } else {
      copy_by_loads(link, destination, source);
    }
    arrived = destination.to(torch::kCPU);
  });
  return compare(copy, arrived, expected);
}

std::string size_text(int64_t bytes) {
  if (bytes >= 1 << 20) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1 << 10) return fmt::format("{} KiB", bytes >> 10);
  return counted(bytes, "byte");
}

}  // namespace

std::string LinkFinding::text() const {
  const std::string subject = fmt::format(
      "{}: a copy of {}{}", copy.link.name(), size_text(copy.bytes),
      copy.method == CopyMethod::kCopyEngine ? "" : " by a kernel's loads");
  switch (kind) {
    case Kind::kTimeout:
      return subject + " did not finish";
    case Kind::kNotWritten:
      return fmt::format(
          "{} did not arrive ({} from offset {} on {} before)", subject,
          counted(wrong_bytes, "byte"), first_byte,
          wrong_bytes == 1 ? "is as it was" : "are as they were");
    case Kind::kChanged:
      return fmt::format(
          "{} arrived changed ({}, the first at offset {})", subject,
          wrong_bytes == 1 ? "1 byte differs"
                           : fmt::format("{} bytes differ", wrong_bytes),
          first_byte);
  }
  return subject;
}

std::optional<LinkFinding> check_copy(const LinkCopy& copy, int round) {
  Ends ends(copy.link);
  return check_between(copy, round, ends);
}

namespace {

// State shared by the thread that copies and the thread that waits for it.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  size_t link = 0;
  LinkCopy copy;
  std::chrono::steady_clock::time_point since;
  std::vector<LinkFinding> findings;
  bool is_done = false;
  bool is_abandoned = false;  // the waiting thread has given up
  std::exception_ptr error;

  /// Returns false if the thread should end.
  bool begin(size_t number, const LinkCopy& next) {
    const std::lock_guard lock(mutex);
    link = number;
    copy = next;
    since = std::chrono::steady_clock::now();
    changed.notify_all();
    return !is_abandoned;
  }
  void end() {
    const std::lock_guard lock(mutex);
    is_done = true;
    changed.notify_all();
  }
};

std::optional<LinkFinding> first_finding(size_t number, const Link& link,
                                         const LinkCheckOptions& options,
                                         Progress& progress) {
  progress.begin(number, {link, CopyMethod::kCopyEngine, 0});
  Ends ends(link);
  for (int round = 0; round < options.rounds(); ++round) {
    for (const int64_t bytes : options.sizes()) {
      for (const CopyMethod method : methods_for(link)) {
        const LinkCopy copy{link, method, bytes};
        if (!progress.begin(number, copy)) return std::nullopt;
        if (auto found = check_between(copy, round, ends)) return found;
      }
    }
  }
  return std::nullopt;
}

void check_all(const std::vector<Link>& links, size_t first,
               const LinkCheckOptions& options, Progress& progress) {
  try {
    for (size_t i = first; i < links.size(); ++i) {
      auto found = first_finding(i, links[i], options, progress);
      const std::lock_guard lock(progress.mutex);
      if (progress.is_abandoned) return;
      if (found) progress.findings.push_back(*std::move(found));
    }
  } catch (...) {
    const std::lock_guard lock(progress.mutex);
    progress.error = std::current_exception();
  }
  progress.end();
}

// Waits until all copies are done, or one copy exceeds the timeout.
bool wait_for(Progress& progress, double timeout_s) {
  std::unique_lock lock(progress.mutex);
  while (!progress.is_done) {
    const auto deadline =
        progress.since +
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::duration<double>(timeout_s));
    if (std::chrono::steady_clock::now() >= deadline) {
      progress.is_abandoned = true;
      return false;
    }
    progress.changed.wait_until(lock, deadline);
  }
  return true;
}

}  // namespace

std::vector<LinkFinding> check_links(std::span<const Link> links,
                                     const LinkCheckOptions& options) {
  std::vector<LinkFinding> findings;
  const std::vector<Link> all(links.begin(), links.end());
  for (size_t next = 0; next < all.size();) {
    auto progress = std::make_shared<Progress>();
    progress->begin(next, {all[next], CopyMethod::kCopyEngine, 0});
    std::thread thread =
        start_thread("links", "the check of links between devices",
                     [progress, all, next, options] {
                       check_all(all, next, options, *progress);
                     });
    const bool is_done = wait_for(*progress, options.timeout_s());
    if (is_done) {
      thread.join();
    } else {
      thread.detach();
    }
    const std::lock_guard lock(progress->mutex);
    if (progress->error) std::rethrow_exception(progress->error);
    findings.insert(findings.end(), progress->findings.begin(),
                    progress->findings.end());
    next = all.size();
    if (is_done) break;
    findings.push_back(
        {.copy = progress->copy, .kind = LinkFinding::Kind::kTimeout});
    next = progress->link + 1;
  }
  return findings;
}

}  // namespace lockstep
