#include "lockstep/tcp/message_sender.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace lockstep::tcp {

using shm::P2pFailureOf;
using shm::P2pOperation;

void MessageSender::send(P2pOperation send, std::span<const std::byte> data) {
  Frame frame{
      .kind = FrameKind::kMessage, .tag = send.tag, .bytes = data.size()};
  const uint64_t charge = data.size() + kCreditPerMessage;
  if (data.size() <= kEagerBytes && charge <= credit_) {
    credit_ -= charge;
    queue(frame, data);
    finish(send);
    return;
  }
  frame.kind = FrameKind::kAnnounce;
  frame.id = ++last_id_;
  queue(frame);
  announced_.emplace(frame.id, Outgoing{std::move(send), data, frame.id});
}

void MessageSender::finish(P2pOperation& send, std::exception_ptr error) {
  const int peer = send.peer;
  finished_->emplace_back(std::move(send), peer, std::move(error));
}

void MessageSender::queue(const Frame& frame,
                          std::span<const std::byte> payload) {
  if (is_closed_ || has_last_) return;
  const auto header = std::as_bytes(std::span(&frame, 1));
  queued_.insert(queued_.end(), header.begin(), header.end());
  queued_.insert(queued_.end(), payload.begin(), payload.end());
}

void MessageSender::queue_last(const Frame& frame,
                               std::span<const std::byte> payload) {
  queue(frame, payload);
  has_last_ = true;
}

void MessageSender::refill() {
  std::swap(queued_, sending_);
  queued_.clear();
  // Frames that wait go before the next chunk.
  if (sending_.empty() && !flowing_.empty()) {
    const Outgoing& next = flowing_.front();
    chunk_ = std::min(next.rest.size(), kChunkBytes);
    const Frame frame{.kind = FrameKind::kData, .bytes = chunk_, .id = next.id};
    const auto header = std::as_bytes(std::span(&frame, 1));
    sending_.assign(header.begin(), header.end());
  }
  connection_->queue_send(sending_);
  if (chunk_ > 0) connection_->queue_send(flowing_.front().rest.first(chunk_));
}

bool MessageSender::advance() {
  if (is_closed_) return false;
  if (!connection_->has_sends()) refill();
  if (!connection_->has_sends() || connection_->is_full()) return false;
  const auto progress = connection_->send_some();
  // The peer may have sent its reason before. What has arrived is still read,
  // and then the end of the connection is found.
  if (progress == Connection::Progress::kClosed) {
    close();
    connection_->shut_down();
  }
  if (progress != Connection::Progress::kSome) return false;
  if (connection_->has_sends() || chunk_ == 0) return true;
  Outgoing& first = flowing_.front();
  first.rest = first.rest.subspan(std::exchange(chunk_, 0));
  if (first.rest.empty()) {
    finish(first.send);
    flowing_.pop_front();
  }
  return true;
}

bool MessageSender::has_unsent() const {
  return !is_closed_ &&
         (connection_->has_sends() || !queued_.empty() || !flowing_.empty());
}

void MessageSender::close() {
  is_closed_ = true;
  queued_.clear();
}

void MessageSender::check_known(uint64_t id) const {
  if (id == 0 || id > last_id_) {
    throw protocol_error(
        fmt::format("an answer to message {} of {}", id, last_id_));
  }
}

void MessageSender::on_answer(uint64_t id, bool is_accepted) {
  check_known(id);
  const auto found = announced_.find(id);
  if (found == announced_.end()) return;
  Outgoing outgoing = std::move(found->second);
  announced_.erase(found);
  if (is_accepted && !outgoing.rest.empty()) {
    flowing_.push_back(std::move(outgoing));
  } else {
    finish(outgoing.send);
  }
}

void MessageSender::on_drop(uint64_t id, const P2pFailureOf& failure_of) {
  check_known(id);
  const auto found =
      std::find_if(flowing_.begin(), flowing_.end(),
                   [&](const Outgoing& its) { return its.id == id; });
  if (found == flowing_.end()) return;
  withdraw(found, failure_of(found->send));
}

void MessageSender::on_credit(uint64_t bytes) {
  if (bytes > kMaxCredit - credit_) {
    throw protocol_error(
        fmt::format("credit for {} bytes, of {}", bytes, kMaxCredit - credit_));
  }
  credit_ += bytes;
}

MessageSender::Time MessageSender::fail(const P2pFailureOf& failure_of) {
  Time earliest = Time::max();
  for (auto next = announced_.begin(); next != announced_.end();) {
    Outgoing& outgoing = next->second;
    if (auto error = failure_of(outgoing.send)) {
      queue({.kind = FrameKind::kWithdraw, .id = outgoing.id});
      finish(outgoing.send, std::move(error));
      next = announced_.erase(next);
    } else {
      earliest = std::min(earliest, outgoing.send.deadline);
      ++next;
    }
  }
  for (auto next = flowing_.begin(); next != flowing_.end();) {
    if (auto error = failure_of(next->send)) {
      next = withdraw(next, std::move(error));
    } else {
      earliest = std::min(earliest, next->send.deadline);
      ++next;
    }
  }
  return earliest;
}

MessageSender::Flowing::iterator MessageSender::withdraw(
    Flowing::iterator outgoing, std::exception_ptr error) {
  if (outgoing == flowing_.begin() && chunk_ > 0) {
    connection_->copy_sends(copied_chunk_);
    chunk_ = 0;
  }
  queue({.kind = FrameKind::kWithdraw, .id = outgoing->id});
  finish(outgoing->send, std::move(error));
  return flowing_.erase(outgoing);
}

}  // namespace lockstep::tcp
