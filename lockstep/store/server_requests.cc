// What a server does with what a connection says.
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/store/server_loop.h"

namespace lockstep::store {

void Server::Loop::read_requests(Number number, Peer& peer, Time now) {
  std::string body;
  while (peer.stage != Peer::Stage::kLeaving && !peer.waiting &&
         !peer.has_output() && peer.next_frame(body)) {
    on_frame(number, peer, body, now);
    if (!peer.write_some()) {
      throw CommError(
          {.code = ErrorCode::kStoreUnreachable, .what = "it is gone"});
    }
  }
}

void Server::Loop::on_frame(Number number, Peer& peer, const std::string& body,
                            Time now) {
  switch (peer.stage) {
    case Peer::Stage::kHello:
      return on_hello(peer, body);
    case Peer::Stage::kProof:
      return on_proof(number, peer, body);
    case Peer::Stage::kOpen:
      return on_request(
          number, peer,
          decode_request(peer.session->open(body), options_.limits), now);
    case Peer::Stage::kLeaving:
      return;
  }
}

void Server::Loop::on_hello(Peer& peer, const std::string& body) {
  const Hello hello = decode_hello(body);
  const std::string challenge = encode(Challenge{.nonce = random_nonce()});
  peer.put_frame(challenge);
  if (hello.version != kProtocolVersion) {
    // It reads in the challenge which version is spoken here.
    peer.stage = Peer::Stage::kLeaving;
    return;
  }
  peer.who = hello.identity;
  peer.handshake.emplace(options_.secret.key_of(peer.who), body, challenge);
  peer.stage = Peer::Stage::kProof;
}

void Server::Loop::on_proof(Number number, Peer& peer,
                            const std::string& body) {
  if (!peer.handshake->is_proof(body)) {
    refusals_.add(peer.address(), "it does not know the job's secret");
    peer.put_frame(encode_wrong_proof());
    peer.stage = Peer::Stage::kLeaving;
    return;
  }
  const Verdict verdict = keeper_.admit(peer.who);
  peer.put_frame(peer.handshake->encode(verdict));
  if (verdict.admission != Admission::kWelcome) {
    refusals_.add(peer.who.text() + " at " + peer.address(), verdict.reason);
    peer.stage = Peer::Stage::kLeaving;
    return;
  }
  peer.session = peer.handshake->server_session();
  peer.set_most_bytes(options_.limits.message_bytes());
  peer.stage = Peer::Stage::kOpen;
  strangers_.erase(number);
}

void Server::Loop::on_request(Number number, Peer& peer, const Request& request,
                              Time now) {
  const bool may_wait = request.operation == Operation::kGet ||
                        request.operation == Operation::kWait;
  if (may_wait && !keeper_.has_all(peer.who, request)) {
    if (request.wait_ms == 0) {
      return peer.put_reply({.status = Status::kTimeout});
    }
    peer.waiting = request;
    peer.deadline = now + std::chrono::milliseconds(request.wait_ms);
    waiters_.insert({peer.deadline, number});
    return;
  }
  peer.put_reply(keeper_.answer(peer.who, request));
  switch (request.operation) {
    case Operation::kBeginRound:
      return close_stale_workers();
    case Operation::kSet:
    case Operation::kAdd:
    case Operation::kCompareSet:
      return wake_waiters();
    default:
      return;
  }
}

void Server::Loop::wake_waiters() {
  std::vector<Number> ready;
  for (const auto& [deadline, number] : waiters_) {
    const Peer& peer = *peers_.at(number);
    if (keeper_.has_all(peer.who, *peer.waiting)) ready.push_back(number);
  }
  for (const Number number : ready) {
    Peer& peer = *peers_.at(number);
    end_wait(number, peer, keeper_.answer(peer.who, *peer.waiting));
  }
}

void Server::Loop::end_wait(Number number, Peer& peer, const Reply& reply) {
  waiters_.erase({peer.deadline, number});
  peer.waiting.reset();
  peer.put_reply(reply);
  attend(number, peer);
}

}  // namespace lockstep::store
