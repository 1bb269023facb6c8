#include "lockstep/store/store_service.h"

#include <algorithm>

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/format.h"
#include "lockstep/base/numbers.h"

namespace lockstep::store {
namespace {

// Last wills are not in a table, so they need their own limit.
constexpr size_t kMaxLastWillBytes = 1024;
// Limit for one rank. A process has one connection for each waiting call.
constexpr size_t kMaxConnectionsOfRank = 256;
// Connections reserved for agents.
constexpr size_t kKeptForAgents = 64;

int round_number(const std::string& text) {
  constexpr size_t kMaxDigits = 9;
  return static_cast<int>(
      parse_number<uint32_t>(text.substr(0, kMaxDigits)).value_or(0));
}

// Returns whether executing the request once more would not do the same.
bool is_change(const Request& request, const Reply& reply) {
  switch (request.operation) {
    case Operation::kSet:
    case Operation::kAdd:
    case Operation::kErase:
      return true;
    case Operation::kCompareSet:
      return reply.value == request.value;
    default:
      return false;
  }
}

void check_is_agent(const Identity& who, const char* what) {
  if (who.role == Role::kAgent) return;
  throw CommError({.code = ErrorCode::kStoreProtocol,
                   .what = what,
                   .expected = "a request of an agent",
                   .got = who.text()});
}

}  // namespace

const std::string* Table::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

bool Table::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(),
                     [&](const auto& key) { return entries_.contains(key); });
}

void Table::set(const std::string& key, const std::string& value,
                const Owner& owner) {
  check_owner(key, owner);
  put(key, value, owner);
}

std::string Table::compare_set(const std::string& key,
                               const std::string& expected,
                               const std::string& value, const Owner& owner) {
  const std::string* current = find(key);
  if (current == nullptr && !expected.empty()) return expected;
  if (current != nullptr && *current != expected) return *current;
  set(key, value, owner);
  return value;
}

int64_t Table::add(const std::string& key, int64_t number, const Owner& owner) {
  int64_t sum = 0;
  if (const std::string* current = find(key)) {
    check_owner(key, owner);
    const auto value = parse_number<int64_t>(*current);
    if (!value) {
      throw CommError({.code = ErrorCode::kStoreRefused,
                       .what = "can't add to a key of the store",
                       .expected = "a whole number in it",
                       .got = fmt::format("{} bytes", current->size())});
    }
    sum = *value;
  }
  if (__builtin_add_overflow(sum, number, &sum)) {
    throw CommError({.code = ErrorCode::kStoreRefused,
                     .what = "a counter of the store overflows"});
  }
  // A counter has no owner, because all clients may add to it.
  put(key, std::to_string(sum), {});
  return sum;
}

bool Table::erase(const std::string& key, const Owner& owner) {
  check_owner(key, owner);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return false;
  bytes_ -= key.size() + found->second.value.size();
  entries_.erase(found);
  return true;
}

void Table::clear() {
  entries_.clear();
  bytes_ = 0;
}

void Table::check_owner(const std::string& key, const Owner& owner) const {
  const auto found = entries_.find(key);
  if (found == entries_.end() || !found->second.owner ||
      found->second.owner == owner) {
    return;
  }
  throw CommError({.code = ErrorCode::kStoreRefused,
                   .what = "a key of the store belongs to another process",
                   .expected = "a key that this process made"});
}

void Table::put(const std::string& key, const std::string& value,
                const Owner& owner) {
  const auto found = entries_.find(key);
  const size_t former =
      found == entries_.end() ? 0 : key.size() + found->second.value.size();
  const size_t bytes = bytes_ - former + key.size() + value.size();
  if (bytes > limits_.total_bytes ||
      (former == 0 && entries_.size() >= limits_.keys)) {
    throw CommError({.code = ErrorCode::kStoreRefused,
                     .what = "the store is full",
                     .expected = fmt::format("{} keys and {} bytes at most",
                                             limits_.keys, limits_.total_bytes),
                     .got = "one more",
                     .fix = "erase what is not needed any more"});
  }
  bytes_ = bytes;
  if (found == entries_.end()) {
    entries_.emplace(key, Entry{value, owner});
  } else {
    found->second.value = value;
  }
}

std::optional<Reply> ReplyCache::find(const Token& channel,
                                      const Request& request) const {
  const auto found = changes_.find(channel);
  if (found == changes_.end() || found->second.id != request.id) {
    return std::nullopt;
  }
  const bool is_compare_set = request.operation == Operation::kCompareSet;
  return Reply{.value = is_compare_set ? request.value : "",
               .number = found->second.number};
}

void ReplyCache::keep(const Token& channel, const Request& request,
                      const Reply& reply) {
  if (reply.status != Status::kDone || !is_change(request, reply)) return;
  Change& change = changes_[channel];
  if (change.closed) closed_.erase(*change.closed);
  change = {.id = request.id, .number = reply.number, .closed = {}};
}

void ReplyCache::close(const Token& channel) {
  const auto found = changes_.find(channel);
  if (found == changes_.end() || found->second.closed) return;
  found->second.closed = next_closed_;
  closed_.emplace(next_closed_++, channel);
  if (closed_.size() <= most_) return;
  changes_.erase(closed_.begin()->second);
  closed_.erase(closed_.begin());
}

void ReplyCache::clear() {
  changes_.clear();
  closed_.clear();
}

AdmissionList::AdmissionList(std::string run_id, size_t most)
    : run_id_(std::move(run_id)), most_(most) {}

std::optional<AdmissionReply> AdmissionList::refusal(
    const Identity& who) const {
  const auto refuse = [&](Admission admission, std::string reason) {
    return AdmissionReply{.admission = admission,
                          .incarnation = incarnation_,
                          .reason = std::move(reason)};
  };
  if (who.run_id != run_id_) {
    return refuse(Admission::kOtherJob,
                  fmt::format("this is the job '{}'", run_id_));
  }
  if (who.incarnation != Token{} && who.incarnation != incarnation_) {
    return refuse(Admission::kOtherIncarnation,
                  "the store was started again, and this client belongs to "
                  "the job before");
  }
  const bool is_agent = who.role == Role::kAgent;
  if (connections_ + (is_agent ? 0 : kKeptForAgents) >= most_) {
    return refuse(
        Admission::kFull,
        fmt::format("there are {} connections, which is the limit", most_));
  }
  if (is_agent) return std::nullopt;
  if (who.round != round_) {
    return refuse(
        Admission::kStaleRound,
        round_ < 0 ? "no round has begun"
                   : fmt::format("round {} is running, and this worker is of "
                                 "round {}",
                                 round_, who.round));
  }
  if (who.world_size != world_size_) {
    return refuse(Admission::kWrongWorldSize,
                  fmt::format("the world has {}, and not {}",
                              counted(world_size_, "rank"), who.world_size));
  }
  const auto found = ranks_.find(who.rank);
  if (found == ranks_.end()) return std::nullopt;
  if (found->second.token != who.token) {
    return refuse(Admission::kDuplicateRank,
                  fmt::format("rank {} is another process that is connected: "
                              "{}",
                              who.rank, found->second.text));
  }
  if (found->second.connections >= kMaxConnectionsOfRank) {
    return refuse(Admission::kFull,
                  fmt::format("rank {} has {} connections already", who.rank,
                              kMaxConnectionsOfRank));
  }
  return std::nullopt;
}

AdmissionReply AdmissionList::admit(const Identity& who) {
  if (auto refused = refusal(who)) return *refused;
  ++connections_;
  if (who.role == Role::kWorker) {
    Rank& rank = ranks_[who.rank];
    rank.token = who.token;
    rank.text = who.text();
    ++rank.connections;
  } else {
    ++agents_[who.token];
  }
  return {.incarnation = incarnation_};
}

bool AdmissionList::leave(const Identity& who) {
  --connections_;
  if (who.role == Role::kAgent) {
    const auto agent = agents_.find(who.token);
    if (--agent->second > 0) return false;
    agents_.erase(agent);
    return true;
  }
  const auto rank = ranks_.find(who.rank);
  if (who.round != round_ || rank == ranks_.end()) return false;
  if (--rank->second.connections == 0) ranks_.erase(rank);
  return false;
}

bool AdmissionList::begin_round(int round, int world_size) {
  if (round == round_ && world_size == world_size_) return false;
  if (round <= round_) {
    throw CommError(
        {.code = ErrorCode::kStoreRefused,
         .what = fmt::format("round {} can't begin", round),
         .expected =
             fmt::format("round {} of {}, which has begun, or a later one",
                         round_, counted(world_size_, "rank")),
         .got =
             fmt::format("round {} of {}", round, counted(world_size, "rank")),
         .fix = "see whether all agents agree on the nodes and workers"});
  }
  round_ = round;
  world_size_ = world_size;
  ranks_.clear();
  return true;
}

bool AdmissionList::is_stale(const Identity& who) const {
  return who.role == Role::kWorker && who.round != round_;
}

StoreService::Content& StoreService::content_of(const Identity& who) {
  return who.role == Role::kAgent ? agents_ : workers_;
}

bool StoreService::has_all(const Identity& who, const Request& request) const {
  const Content& content = who.role == Role::kAgent ? agents_ : workers_;
  return content.table.has_all(request.keys);
}

Reply StoreService::answer(const Identity& who, const Token& channel,
                           const Request& request) {
  ReplyCache& replies = content_of(who).replies;
  if (auto known = replies.find(channel, request)) return *known;
  try {
    Reply reply = execute(who, request);
    replies.keep(channel, request, reply);
    return reply;
  } catch (const CommError& error) {
    return {.status = Status::kRefused, .value = text_of(error)};
  }
}

Reply StoreService::execute(const Identity& who, const Request& request) {
  Table& table = content_of(who).table;
  // Any worker may change any key of the workers, as in the stores of c10d.
  Table::Owner owner;
  if (who.role == Role::kAgent) owner = who.token;
  Reply reply;
  switch (request.operation) {
    case Operation::kSet:
      table.set(request.keys[0], request.value, owner);
      break;
    case Operation::kGet:
      if (const auto* found = table.find(request.keys[0])) reply.value = *found;
      break;
    case Operation::kAdd:
      reply.number = table.add(request.keys[0], request.number, owner);
      break;
    case Operation::kCompareSet:
      reply.value = table.compare_set(request.keys[0], request.expected,
                                      request.value, owner);
      break;
    case Operation::kCheck:
      reply.number = table.has_all(request.keys) ? 1 : 0;
      break;
    case Operation::kErase:
      reply.number = table.erase(request.keys[0], owner) ? 1 : 0;
      break;
    case Operation::kWait:
      break;
    case Operation::kCount:
      reply.number = static_cast<int64_t>(table.size());
      break;
    case Operation::kBeginRound:
      check_is_agent(who, "a round can't begin");
      if (request.number < 0 || request.number > INT_MAX) {
        throw CommError({.code = ErrorCode::kStoreProtocol,
                         .what = "the number of a round is out of range"});
      }
      begin_round(static_cast<int>(request.number),
                  round_number(request.value));
      break;
    case Operation::kSetLastWill:
      check_is_agent(who, "a last will can't be registered");
      if (request.value.size() > kMaxLastWillBytes) {
        throw CommError({.code = ErrorCode::kStoreProtocol,
                         .what = "a last will is too long",
                         .expected = fmt::format("{} bytes", kMaxLastWillBytes),
                         .got = std::to_string(request.value.size())});
      }
      last_wills_[who.token] = {.key = request.keys[0], .value = request.value};
      break;
  }
  return reply;
}

AdmissionReply StoreService::admit(const Identity& who) {
  const AdmissionReply reply = admissions.admit(who);
  const auto will = last_wills_.find(who.token);
  const bool is_back = reply.admission == Admission::kWelcome &&
                       who.role == Role::kAgent && will != last_wills_.end() &&
                       will->second.is_done;
  if (is_back) {
    agents_.table.erase(will->second.key, who.token);
    will->second.is_done = false;
  }
  return reply;
}

bool StoreService::leave(const Identity& who, const Token& channel) {
  content_of(who).replies.close(channel);
  return admissions.leave(who) && last_wills_.contains(who.token);
}

bool StoreService::carry_out_last_will(const Token& agent) {
  const auto will = last_wills_.find(agent);
  if (will == last_wills_.end()) return false;
  try {
    agents_.table.set(will->second.key, will->second.value, agent);
  } catch (const CommError&) {
    return false;  // another agent owns the key, or the table is full
  }
  will->second.is_done = true;
  return true;
}

bool StoreService::begin_round(int round, int world_size) {
  if (!admissions.begin_round(round, world_size)) return false;
  workers_.table.clear();
  workers_.replies.clear();
  return true;
}

}  // namespace lockstep::store
