#include "lockstep/store/store_service.h"

#include <climits>
#include <fmt/format.h>

#include "lockstep/base/error.h"

namespace lockstep::store {
namespace {

// Last wills are not in a table, so they need their own limit.
constexpr size_t kMostLastWillBytes = 1024;

int round_number(const std::string& text) {
  constexpr size_t kMostDigits = 9;
  int number = 0;
  for (const char digit : text.substr(0, kMostDigits)) {
    if (digit < '0' || digit > '9') return 0;
    number = 10 * number + (digit - '0');
  }
  return number;
}

void check_is_agent(const Identity& who, const char* what) {
  if (who.role == Role::kAgent) return;
  throw CommError({.code = ErrorCode::kStoreProtocol,
                   .what = what,
                   .expected = "a request of an agent",
                   .got = who.text()});
}

}  // namespace

Table& StoreService::table_of(const Identity& who) {
  return who.role == Role::kAgent ? agents_ : workers_;
}

bool StoreService::has_all(const Identity& who, const Request& request) const {
  const Table& table = who.role == Role::kAgent ? agents_ : workers_;
  return table.has_all(request.keys);
}

Reply StoreService::answer(const Identity& who, const Request& request) {
  try {
    return execute(who, request);
  } catch (const CommError& error) {
    return {.status = Status::kRefused, .value = text_of(error)};
  }
}

Reply StoreService::execute(const Identity& who, const Request& request) {
  Table& table = table_of(who);
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
      if (request.value.size() > kMostLastWillBytes) {
        throw CommError(
            {.code = ErrorCode::kStoreProtocol,
             .what = "a last will is too long",
             .expected = fmt::format("{} bytes", kMostLastWillBytes),
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
    agents_.erase(will->second.key, who.token);
    will->second.is_done = false;
  }
  return reply;
}

bool StoreService::leave(const Identity& who) {
  if (!admissions.leave(who)) return false;
  const auto will = last_wills_.find(who.token);
  if (will == last_wills_.end()) return false;
  try {
    agents_.set(will->second.key, will->second.value, who.token);
  } catch (const CommError&) {
    return false;  // another agent owns the key, or the table is full
  }
  will->second.is_done = true;
  return true;
}

bool StoreService::begin_round(int round, int world_size) {
  if (!admissions.begin_round(round, world_size)) return false;
  workers_.clear();
  return true;
}

}  // namespace lockstep::store
