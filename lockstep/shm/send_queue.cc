#include "lockstep/shm/send_queue.h"

#include <algorithm>
#include <utility>

namespace lockstep::shm {

void SendQueue::add(P2pOperation send, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({std::move(send), data, nullptr, false, nullptr});
}

void SendQueue::put(Pending& pending) {
  MessageHead head{.tag = pending.send.tag, .bytes = pending.data.size()};
  if (head.is_inline()) {
    ring_.put(head, pending.data);
    pending.is_over = true;
    return;
  }
  pending.message = std::make_unique<LargeMessage>(pending.data, *spares_);
  head.address = pending.message->address();
  ring_.put(head, {});
}

void SendQueue::advance(FinishedOperations& finished,
                        const P2pFailureOf& failure_of) {
  const std::lock_guard lock(mutex_);
  bool has_space = !is_closed_;
  for (Pending& pending : pending_) {
    try {
      if (pending.message) {
        pending.is_over = pending.message->is_taken();
      } else if (has_space && (has_space = ring_.has_space())) {
        put(pending);
      }
    } catch (...) {
      // There is no memory for this message, or the ring was overwritten. In
      // the second case all sends fail.
      pending.error = std::current_exception();
      pending.is_over = true;
    }
    if (!failure_of || pending.is_over) continue;
    pending.error = failure_of(pending.send);
    pending.is_over = pending.error != nullptr;
  }
  move_finished(finished);
}

bool SendQueue::is_empty() const {
  const std::lock_guard lock(mutex_);
  return pending_.empty();
}

void SendQueue::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

void SendQueue::move_finished(FinishedOperations& finished) {
  for (Pending& pending : pending_) {
    if (!pending.is_over) continue;
    const int peer = pending.send.peer;
    finished.emplace_back(std::move(pending.send), peer, pending.error);
  }
  std::erase_if(pending_, [](const Pending& p) { return p.is_over; });
}

}  // namespace lockstep::shm
