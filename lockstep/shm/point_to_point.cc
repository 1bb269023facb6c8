#include "lockstep/shm/point_to_point.h"

#include <algorithm>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/start_thread.h"
#include "lockstep/base/wait_until.h"

namespace lockstep::shm {
namespace {

// Time between two checks that the other ranks are alive.
constexpr int kSleepMs = 20;

void run_all(FinishedOperations& finished) {
  for (FinishedOperation& operation : finished) operation.run();
}

}  // namespace

PointToPoint::PointToPoint(std::shared_ptr<const Segment> segment, int rank,
                           int ranks)
    : P2pChannel(rank, ranks),
      segment_(std::move(segment), ranks),
      receives_(segment_, rank),
      peers_(segment_, rank) {
  for (int to = 0; to < ranks; ++to) {
    sends_.push_back(std::make_unique<SendQueue>(
        RingWriter(segment_.ring(rank, to), segment_.line(to).events),
        spares_));
  }
  join();
}

void PointToPoint::join() {
  P2pRankState& own = segment_.line(own_rank());
  State absent = State::kAbsent;
  if (!own.state.compare_exchange_strong(absent, State::kJoining)) {
    throw CommError(
        {.code = ErrorCode::kNoSharedMemory,
         .what = fmt::format("two processes are rank {}", own_rank()),
         .got = fmt::format("pid {} and {}", own.pid.load(), ::getpid()),
         .fix = "give each its own RANK"});
  }
  own.pid.store(::getpid());
  own.start_time.store(own_start_time());
  own.state.store(State::kHere);
}

PointToPoint::~PointToPoint() {
  is_stopping_.store(true);
  {
    const std::lock_guard lock(mutex_);
    handed_over_.notify_all();
  }
  segment_.line(own_rank()).events.advance();
  if (thread_.joinable()) thread_.join();
  leave(State::kLeft);

  FinishedOperations finished;
  const auto left = [&](const P2pOperation& operation) {
    return left_during(operation, own_rank());
  };
  receives_.advance(finished, left);
  for (const auto& queue : sends_) {
    queue->close();
    queue->advance(finished, left);
  }
  run_all(finished);
}

void PointToPoint::leave(State state) noexcept {
  State here = State::kHere;
  segment_.line(own_rank()).state.compare_exchange_strong(here, state);
  for (int other = 0; other < ranks(); ++other) {
    segment_.line(other).events.advance();
  }
}

void PointToPoint::abort(const std::string& reason) noexcept {
  P2pRankState& own = segment_.line(own_rank());
  if (own.state.load() != State::kHere) return;
  // If several threads fail at the same time, only one writes the text.
  if (has_written_failure_.exchange(true)) return;
  transport::set_failure(own.failure, reason);
  leave(State::kFailed);
}

void PointToPoint::start_send(P2pOperation send,
                              std::span<const std::byte> data) {
  SendQueue& queue = *sends_[static_cast<size_t>(send.peer)];
  if (segment_.line(send.peer).state.load() > State::kHere) queue.close();
  queue.add(std::move(send), data);
  FinishedOperations finished;
  queue.advance(finished);
  run_all(finished);
  if (!queue.is_empty()) hand_over();
}

void PointToPoint::start_receive(P2pOperation receive,
                                 std::span<std::byte> data) {
  FinishedOperations finished;
  receives_.add(std::move(receive), data, finished);
  receives_.advance(finished);
  run_all(finished);
  if (!receives_.is_empty()) hand_over();
}

void PointToPoint::hand_over() {
  {
    const std::lock_guard lock(mutex_);
    has_work_ = true;
    if (!thread_.joinable()) {
      thread_ = start_thread("comm", "a rank's messages", [this] { run(); });
    }
    handed_over_.notify_all();
  }
  segment_.line(own_rank()).events.advance();
}

void PointToPoint::run() {
  // This thread never spins, because the rank's own thread may need the core.
  auto next_look = Clock::now();
  while (!is_stopping_.load()) {
    if (is_idle()) {
      std::unique_lock lock(mutex_);
      wait_until(handed_over_, lock,
                 [&] { return has_work_ || is_stopping_.load(); });
      has_work_ = false;
      continue;
    }
    EventCount& events = segment_.line(own_rank()).events;
    const uint32_t seen = events.count();
    const bool is_time = Clock::now() >= next_look;
    step(is_time);
    if (is_time) {
      next_look = Clock::now() + std::chrono::milliseconds(kSleepMs);
    }
    if (!is_idle()) events.wait(seen, kSleepMs);
  }
}

void PointToPoint::step(bool look_at_processes) {
  // The ends are looked at before the messages, so that messages which came
  // before the end of their rank still count.
  peers_.look_at_lines();
  if (look_at_processes) peers_.look_at_processes();
  FinishedOperations finished;
  const auto judge = [&](const P2pOperation& its) { return failure_of(its); };
  for (int to = 0; to < ranks(); ++to) {
    SendQueue& queue = *sends_[static_cast<size_t>(to)];
    if (peers_.end_of(to)) queue.close();
    queue.advance(finished, judge);
  }
  receives_.advance(finished, judge);
  run_all(finished);
}

bool PointToPoint::is_idle() const {
  return receives_.is_empty() &&
         std::all_of(sends_.begin(), sends_.end(),
                     [](const auto& queue) { return queue->is_empty(); });
}

}  // namespace lockstep::shm
