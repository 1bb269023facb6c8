#include "lockstep/tcp/message_receiver.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::tcp {

using shm::FinishedOperations;
using shm::P2pFailureOf;
using shm::P2pOperation;

namespace {

bool wants(const P2pOperation& receive, int source, int tag) {
  return (receive.peer == shm::kAnySource || receive.peer == source) &&
         receive.tag == tag;
}

}  // namespace

MessageReceiver::MessageReceiver(int rank, int ranks, Links links,
                                 FinishedOperations& finished)
    : rank_(rank),
      links_(std::move(links)),
      finished_(finished),
      sources_(static_cast<size_t>(ranks)) {}

void MessageReceiver::add(P2pOperation receive, std::span<std::byte> data) {
  Pending pending{std::move(receive), data};
  const auto found = std::find_if(
      arrived_.begin(), arrived_.end(), [&](const Arrived& arrived) {
        return wants(pending.receive, arrived.source, arrived.tag);
      });
  if (found == arrived_.end()) {
    pending_.push_back(std::move(pending));
    return;
  }
  const Arrived arrived = std::move(*found);
  arrived_.erase(found);
  if (arrived.id == 0) {
    deliver(std::move(pending), arrived.source, arrived.data);
  } else {
    --at(arrived.source).announced;
    answer(std::move(pending), arrived.source, arrived.id, arrived.bytes);
  }
}

std::deque<MessageReceiver::Pending>::iterator MessageReceiver::find_pending(
    int source, int tag) {
  return std::find_if(
      pending_.begin(), pending_.end(),
      [&](const Pending& its) { return wants(its.receive, source, tag); });
}

void MessageReceiver::on_message(int source, int tag,
                                 std::span<const std::byte> data) {
  Source& from = at(source);
  from.held += data.size() + kCreditPerMessage;
  if (from.held > kMaxCredit) {
    throw protocol_error(
        fmt::format("more than {} bytes of unsolicited messages", kMaxCredit));
  }
  const auto found = find_pending(source, tag);
  if (found == pending_.end()) {
    arrived_.push_back({.source = source,
                        .tag = tag,
                        .bytes = data.size(),
                        .id = 0,
                        .data = {data.begin(), data.end()}});
    return;
  }
  Pending pending = std::move(*found);
  pending_.erase(found);
  deliver(std::move(pending), source, data);
}

void MessageReceiver::on_announce(int source, const Frame& frame) {
  Source& from = at(source);
  if (frame.id != from.last_id + 1) {
    throw protocol_error(
        fmt::format("message {} after message {}", frame.id, from.last_id));
  }
  ++from.last_id;
  const auto found = find_pending(source, frame.tag);
  if (found != pending_.end()) {
    Pending pending = std::move(*found);
    pending_.erase(found);
    answer(std::move(pending), source, frame.id, frame.bytes);
    return;
  }
  if (++from.announced > kMaxAnnouncedBytes) {
    throw protocol_error(fmt::format(
        "more than {} messages that no receive wants", kMaxAnnouncedBytes));
  }
  arrived_.push_back({.source = source,
                      .tag = frame.tag,
                      .bytes = frame.bytes,
                      .id = frame.id,
                      .data = {}});
}

void MessageReceiver::deliver(Pending pending, int source,
                              std::span<const std::byte> data) {
  std::exception_ptr error = size_error(pending, source, data.size());
  if (!error) std::copy(data.begin(), data.end(), pending.data.begin());
  finished_.emplace_back(std::move(pending.receive), source, std::move(error));
  give_credit(source, data.size() + kCreditPerMessage);
}

void MessageReceiver::give_credit(int source, uint64_t charge) {
  Source& from = at(source);
  from.consumed += charge;
  if (from.consumed < kMaxCredit / 2) return;
  links_.queue(source, {.kind = FrameKind::kCredit, .bytes = from.consumed});
  from.held -= std::exchange(from.consumed, 0);
}

void MessageReceiver::answer(Pending pending, int source, uint64_t id,
                             uint64_t bytes) {
  std::exception_ptr error = size_error(pending, source, bytes);
  links_.queue(source, {.kind = error ? FrameKind::kRefuse : FrameKind::kAccept,
                        .id = id});
  if (error || bytes == 0) {
    finished_.emplace_back(std::move(pending.receive), source,
                           std::move(error));
  } else {
    at(source).transfers.emplace(id, Transfer{std::move(pending)});
  }
}

std::exception_ptr MessageReceiver::size_error(const Pending& pending,
                                               int source,
                                               uint64_t bytes) const {
  if (bytes == pending.data.size()) return nullptr;
  return shm::wrong_size(source, bytes, pending.receive.tag, rank_,
                         pending.data.size());
}

std::span<std::byte> MessageReceiver::memory_for(int source,
                                                 const Frame& data) {
  Source& from = at(source);
  const auto found = from.transfers.find(data.id);
  if (found == from.transfers.end()) {
    throw protocol_error(
        fmt::format("data of message {}, which was not asked for", data.id));
  }
  const Transfer& transfer = found->second;
  const size_t rest = transfer.pending.data.size() - transfer.received;
  if (data.bytes == 0 || data.bytes > std::min(rest, kChunkBytes)) {
    throw protocol_error(fmt::format(
        "{} bytes for a message that needs only {} more", data.bytes, rest));
  }
  from.arriving = data.id;
  if (!transfer.is_dropped) {
    return transfer.pending.data.subspan(transfer.received, data.bytes);
  }
  from.scratch.resize(data.bytes);
  return from.scratch;
}

void MessageReceiver::on_data(int source, const Frame& data) {
  Source& from = at(source);
  from.arriving = 0;
  const auto found = from.transfers.find(data.id);
  Transfer& transfer = found->second;
  transfer.received += data.bytes;
  if (transfer.received < transfer.pending.data.size()) return;
  if (!transfer.is_dropped) {
    finished_.emplace_back(std::move(transfer.pending.receive), source,
                           nullptr);
  }
  from.transfers.erase(found);
}

void MessageReceiver::on_withdraw(int source, uint64_t id,
                                  const P2pFailureOf& failure_of) {
  Source& from = at(source);
  if (id == 0 || id > from.last_id) {
    throw protocol_error(
        fmt::format("the end of message {} of {}", id, from.last_id));
  }
  if (const auto found = from.transfers.find(id);
      found != from.transfers.end()) {
    P2pOperation& receive = found->second.pending.receive;
    if (!found->second.is_dropped) {
      std::exception_ptr error = failure_of(receive);
      finished_.emplace_back(std::move(receive), source, std::move(error));
    }
    from.transfers.erase(found);
    return;
  }
  from.announced -= std::erase_if(arrived_, [&](const Arrived& arrived) {
    return arrived.source == source && arrived.id == id;
  });
}

void MessageReceiver::on_end(int source, const P2pFailureOf& failure_of) {
  Source& from = at(source);
  for (auto& [id, transfer] : from.transfers) {
    if (transfer.is_dropped) continue;
    std::exception_ptr error = failure_of(transfer.pending.receive);
    finished_.emplace_back(std::move(transfer.pending.receive), source,
                           std::move(error));
  }
  from.transfers.clear();
  std::erase_if(arrived_, [&](const Arrived& arrived) {
    return arrived.source == source && arrived.id != 0;
  });
}

MessageReceiver::Time MessageReceiver::fail(const P2pFailureOf& failure_of) {
  Time earliest = Time::max();
  // Ends the receive, or notes its deadline.
  const auto judge = [&](P2pOperation& receive) {
    std::exception_ptr error = failure_of(receive);
    if (error) {
      const int peer = receive.peer;
      finished_.emplace_back(std::move(receive), peer, std::move(error));
      return true;
    }
    earliest = std::min(earliest, receive.deadline);
    return false;
  };
  std::deque<Pending> going_on;
  for (Pending& pending : pending_) {
    if (!judge(pending.receive)) going_on.push_back(std::move(pending));
  }
  pending_ = std::move(going_on);
  for (size_t rank = 0; rank < sources_.size(); ++rank) {
    const int source = static_cast<int>(rank);
    Source& from = sources_[rank];
    for (auto& [id, transfer] : from.transfers) {
      if (transfer.is_dropped || !judge(transfer.pending.receive)) continue;
      transfer.is_dropped = true;
      if (from.arriving == id) links_.redirect(source, from.scratch);
      links_.queue(source, {.kind = FrameKind::kDrop, .id = id});
    }
  }
  return earliest;
}

}  // namespace lockstep::tcp
