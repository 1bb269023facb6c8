#include "lockstep/store/client.h"

#include <algorithm>
#include <poll.h>
#include <utility>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/out_of_resources.h"

namespace lockstep::store {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kHandshakeTime{5000};
constexpr int kPauseMs = 20;

uint32_t wait_ms(milliseconds time) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(time.count(), 0, INT32_MAX / 2));
}

}  // namespace

Client::Client(ClientOptions options) : options_(std::move(options)) {
  auto channel = connect(Clock::now() + options_.connect_time);
  own_host_ = channel->own_address().host();
  idle_.push_back(std::move(channel));
}

Client::~Client() = default;

std::unique_ptr<Channel> Client::connect(Time deadline) const {
  std::string problem = "nobody listens";
  std::optional<CommError> wrong;
  do {
    for (const auto& address : resolve(options_.host, options_.port)) {
      const auto attempt_deadline =
          std::min(deadline, Clock::now() + kHandshakeTime);
      FileDescriptor socket = connect_to(address, attempt_deadline);
      if (!socket.is_open()) continue;
      try {
        return std::make_unique<Channel>(std::move(socket), options_.who,
                                         options_.key, attempt_deadline);
      } catch (const Disconnected& error) {
        // A server that is flooded with connections may close any of them.
        problem = text_of(error);
      } catch (const TimedOut& error) {
        problem = text_of(error);
      } catch (const Refused&) {
        throw;
      } catch (const CommError& error) {
        wrong = error;  // another address of this name may be right
      }
    }
    if (wrong) throw CommError(*wrong);
    if (Clock::now() < deadline) ::poll(nullptr, 0, kPauseMs);
  } while (Clock::now() < deadline);
  check_descriptors("comm", "can't connect to the job's store");
  throw Unreachable(
      {.code = ErrorCode::kStoreUnreachable,
       .what = fmt::format("can't reach the job's store at {} port "
                           "{}",
                           options_.host, options_.port),
       .got = problem,
       .fix = "check that its server runs, and its address"});
}

std::unique_ptr<Channel> Client::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      auto channel = std::move(idle_.back());
      idle_.pop_back();
      if (channel->is_alive()) return channel;
      // If the server closed one connection, it closed all.
      idle_.clear();
    }
  }
  // The server was running before. If it has ended, it does not come back.
  return connect(Clock::now() +
                 std::min(options_.connect_time, options_.answer_time));
}

Reply Client::ask(const Request& request) {
  auto channel = take();
  const auto deadline =
      Clock::now() + milliseconds(request.wait_ms) + options_.answer_time;
  Reply reply = channel->ask(request, deadline);
  {
    // The connection is kept even after a refusal. A process without one counts
    // as gone.
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(channel));
  }
  if (reply.status == Status::kRefused) {
    throw RequestRefused({.code = ErrorCode::kStoreRefused,
                          .what = "the job's store refused a request",
                          .got = reply.value});
  }
  return reply;
}

void Client::set(const std::string& key, const std::string& value) {
  ask({.operation = Operation::kSet, .keys = {key}, .value = value});
}

std::optional<std::string> Client::get(const std::string& key,
                                       Milliseconds wait) {
  Reply reply = ask(
      {.operation = Operation::kGet, .keys = {key}, .wait_ms = wait_ms(wait)});
  if (reply.status == Status::kTimeout) return std::nullopt;
  return std::move(reply.value);
}

int64_t Client::add(const std::string& key, int64_t value) {
  return ask({.operation = Operation::kAdd, .keys = {key}, .number = value})
      .number;
}

std::string Client::compare_set(const std::string& key,
                                const std::string& expected,
                                const std::string& value) {
  return ask({.operation = Operation::kCompareSet,
              .keys = {key},
              .value = value,
              .expected = expected})
      .value;
}

bool Client::has(const std::vector<std::string>& keys) {
  return ask({.operation = Operation::kCheck, .keys = keys}).number != 0;
}

bool Client::wait(const std::vector<std::string>& keys, Milliseconds time) {
  return ask({.operation = Operation::kWait,
              .keys = keys,
              .wait_ms = wait_ms(time)})
             .status == Status::kDone;
}

bool Client::erase(const std::string& key) {
  return ask({.operation = Operation::kErase, .keys = {key}}).number != 0;
}

int64_t Client::count() { return ask({.operation = Operation::kCount}).number; }

void Client::begin_round(int round, int world_size) {
  ask({.operation = Operation::kBeginRound,
       .value = std::to_string(world_size),
       .number = round});
}

void Client::set_last_will(const std::string& key, const std::string& value) {
  ask({.operation = Operation::kSetLastWill, .keys = {key}, .value = value});
}

}  // namespace lockstep::store
