#include "lockstep/shm/receive_queue.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::shm {
namespace {

bool wants(const P2pOperation& receive, int source) {
  return receive.peer == kAnySource || receive.peer == source;
}

bool wants(const P2pOperation& receive, int source, int tag) {
  return wants(receive, source) && receive.tag == tag;
}

}  // namespace

ReceiveQueue::ReceiveQueue(const P2pSegment& segment, int rank)
    : segment_(segment), rank_(rank) {
  for (int source = 0; source < segment_.ranks(); ++source) {
    rings_.emplace_back(segment_.ring(source, rank),
                        segment_.line(source).events);
  }
}

void ReceiveQueue::add(P2pOperation receive, std::span<std::byte> data,
                       FinishedOperations& finished) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find_if(
      set_aside_.begin(), set_aside_.end(), [&](const Message& message) {
        return wants(receive, message.source, message.head.tag);
      });
  if (found == set_aside_.end()) {
    pending_.push_back({std::move(receive), data});
    return;
  }
  if (found->data.size() == data.size()) {
    std::copy(found->data.begin(), found->data.end(), data.begin());
  }
  finished.push_back(
      deliver({std::move(receive), data}, found->source, found->head));
  set_aside_.erase(found);
}

void ReceiveQueue::advance(FinishedOperations& finished,
                           const P2pFailureOf& failure_of) {
  const std::lock_guard lock(mutex_);
  // Start with another rank each time, so that a receive from any rank does not
  // starve one of them.
  first_ = (first_ + 1) % segment_.ranks();
  for (int k = 0; k < segment_.ranks(); ++k) {
    const int source = (first_ + k) % segment_.ranks();
    if (source != rank_) read_ring(source, finished);
  }
  // Under the same lock, so that no receive can be added whose message was not
  // looked for yet.
  if (failure_of) judge(failure_of, finished);
}

void ReceiveQueue::read_ring(int source, FinishedOperations& finished) {
  RingReader& ring = rings_[static_cast<size_t>(source)];
  while (is_wanted(source)) {
    std::optional<MessageHead> head;
    try {
      head = ring.front();
    } catch (const CommError&) {
      const auto error = std::current_exception();
      const auto doomed = [&](const P2pOperation& receive) {
        return wants(receive, source) ? error : nullptr;
      };
      judge(doomed, finished);
      return;
    }
    if (!head) return;
    const auto found = std::find_if(
        pending_.begin(), pending_.end(), [&](const Pending& pending) {
          return wants(pending.receive, source, head->tag);
        });
    if (found == pending_.end()) {
      Message message{.source = source, .head = *head, .data = {}};
      if (head->is_inline()) message.data.resize(head->bytes);
      ring.copy_front(message.data);
      set_aside_.push_back(std::move(message));
    } else {
      if (head->is_inline() && head->bytes == found->data.size()) {
        ring.copy_front(found->data);
      }
      finished.push_back(deliver(std::move(*found), source, *head));
      pending_.erase(found);
    }
    ring.pop();
  }
}

bool ReceiveQueue::is_wanted(int source) const {
  return std::any_of(pending_.begin(), pending_.end(),
                     [&](const auto& p) { return wants(p.receive, source); });
}

FinishedOperation ReceiveQueue::deliver(Pending pending, int source,
                                        const MessageHead& head) const {
  std::exception_ptr error;
  std::function<void()> last_step;
  std::span<std::byte> out = pending.data;
  if (head.bytes != out.size()) {
    error = wrong_size(source, head.bytes, head.tag, rank_, out.size());
    out = {};
  }
  if (!head.is_inline()) {
    last_step = [this, source, head, out] { take(source, head, out); };
  }
  return {std::move(pending.receive), source, error, std::move(last_step)};
}

void ReceiveQueue::take(int source, const MessageHead& head,
                        std::span<std::byte> out) const {
  P2pRankState& line = segment_.line(source);
  const pid_t pid = line.pid.load();
  try {
    if (head.address.pid != pid) {
      throw CommError({.code = ErrorCode::kNoSharedMemory,
                       .what = "it is another process's",
                       .expected = std::to_string(pid),
                       .got = std::to_string(head.address.pid)});
    }
    LargeMessage::take(head.address, out, opened_);
  } catch (const CommError& error) {
    if (out.empty()) return;  // the receive already has an error
    throw CommError(
        {.code = ErrorCode::kNoSharedMemory,
         .what = fmt::format("rank {} can't take the message of rank {} ({}) "
                             "({} bytes, tag {})",
                             rank_, source, segment_.process_name(source),
                             head.bytes, head.tag),
         .got = text_of(error),
         .fix = "that rank ended, left, or gave up on the message: look at its "
                "own output"});
  }
  line.events.advance();
}

void ReceiveQueue::judge(const P2pFailureOf& failure_of,
                         FinishedOperations& finished) {
  std::deque<Pending> going_on;
  for (Pending& pending : pending_) {
    if (auto error = failure_of(pending.receive)) {
      const int peer = pending.receive.peer;
      finished.emplace_back(std::move(pending.receive), peer, error);
    } else {
      going_on.push_back(std::move(pending));
    }
  }
  pending_ = std::move(going_on);
}

bool ReceiveQueue::is_empty() const {
  const std::lock_guard lock(mutex_);
  return pending_.empty();
}

}  // namespace lockstep::shm
