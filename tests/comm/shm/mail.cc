#include "tests/comm/shm/mail.h"

#include <random>

namespace lockstep::shm {

Message noise(size_t bytes, uint32_t seed) {
  std::minstd_rand random(seed + 1);
  Message result(bytes);
  for (std::byte& byte : result) byte = static_cast<std::byte>(random() >> 8);
  return result;
}

MailDone done_into(const std::shared_ptr<std::promise<int>>& promise) {
  return [promise](const std::exception_ptr& error, int source) {
    if (error) {
      promise->set_exception(error);
    } else {
      promise->set_value(source);
    }
  };
}

std::future<int> MailRank::send(int to, int tag,
                                std::span<const std::byte> data) {
  auto promise = std::make_shared<std::promise<int>>();
  mailbox.send(to, tag, data, timeout, done_into(promise));
  return promise->get_future();
}

std::future<int> MailRank::receive(int from, int tag,
                                   std::span<std::byte> data) {
  auto promise = std::make_shared<std::promise<int>>();
  mailbox.receive(from, tag, data, timeout, done_into(promise));
  return promise->get_future();
}

std::future<int> MailRank::receive_any(int tag, std::span<std::byte> data) {
  auto promise = std::make_shared<std::promise<int>>();
  mailbox.receive_any(tag, data, timeout, done_into(promise));
  return promise->get_future();
}

void MailRank::barrier() {
  group.begin({.operation = Operation::kBarrier}, group.timeout());
  group.sync();
}

std::vector<std::string> run_mail(Kind kind, int ranks, const MailTask& task) {
  const auto segment = MailSegment::make(ranks);
  const SegmentAddress address = segment->address();
  return run_ranks(kind, ranks, [&](Group& group) {
    Mailbox mailbox(Segment::open(address), group.rank(), ranks);
    MailRank self{mailbox, group};
    try {
      task(self);
    } catch (const std::exception& error) {
      mailbox.fail(error.what());
      throw;
    }
  });
}

}  // namespace lockstep::shm
