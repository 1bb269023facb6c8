#include "lockstep/shm/outbox.h"

#include <algorithm>
#include <utility>

namespace lockstep::shm {

void Outbox::add(MailOperation send, std::span<const std::byte> data) {
  const std::lock_guard lock(mutex_);
  pending_.push_back({std::move(send), data, nullptr, false, nullptr});
}

void Outbox::put(Pending& pending) {
  MessageHead head{.tag = pending.send.tag, .bytes = pending.data.size()};
  if (head.is_inline()) {
    ring_.put(head, pending.data);
    pending.is_over = true;
    return;
  }
  pending.parcel = std::make_unique<Parcel>(pending.data, *spares_);
  head.address = pending.parcel->address();
  ring_.put(head, {});
}

void Outbox::advance(FinishedMails& finished, const MailVerdict& verdict) {
  const std::lock_guard lock(mutex_);
  bool has_space = !is_closed_;
  for (Pending& pending : pending_) {
    try {
      if (pending.parcel) {
        pending.is_over = pending.parcel->is_taken();
      } else if (has_space && (has_space = ring_.has_space())) {
        put(pending);
      }
    } catch (...) {
      // No memory for it, or a ring that is overwritten: then for all.
      pending.error = std::current_exception();
      pending.is_over = true;
    }
    if (!verdict || pending.is_over) continue;
    pending.error = verdict(pending.send);
    pending.is_over = pending.error != nullptr;
  }
  move_finished(finished);
}

bool Outbox::is_empty() const {
  const std::lock_guard lock(mutex_);
  return pending_.empty();
}

void Outbox::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

void Outbox::move_finished(FinishedMails& finished) {
  for (Pending& pending : pending_) {
    if (!pending.is_over) continue;
    const int peer = pending.send.peer;
    finished.emplace_back(std::move(pending.send), peer, pending.error);
  }
  std::erase_if(pending_, [](const Pending& p) { return p.is_over; });
}

}  // namespace lockstep::shm
