#include "lockstep/comm/store/keeper.h"

#include <climits>

#include "lockstep/base/error.h"
#include "lockstep/comm/store/refusal_log.h"

namespace lockstep::store {
namespace {

int round_number(const std::string& text) {
  constexpr size_t kMostDigits = 9;
  int number = 0;
  for (const char digit : text.substr(0, kMostDigits)) {
    if (digit < '0' || digit > '9') return 0;
    number = 10 * number + (digit - '0');
  }
  return number;
}

}  // namespace

Table& Keeper::table_of(const Identity& who) {
  return who.role == Role::kAgent ? agents_ : workers_;
}

bool Keeper::has_all(const Identity& who, const Request& request) const {
  const Table& table = who.role == Role::kAgent ? agents_ : workers_;
  return table.has_all(request.keys);
}

Reply Keeper::answer(const Identity& who, const Request& request) {
  try {
    return do_it(who, request);
  } catch (const CommError& error) {
    return {.status = Status::kRefused, .value = reason_of(error)};
  }
}

Reply Keeper::do_it(const Identity& who, const Request& request) {
  Table& table = table_of(who);
  // Workers are one program, and share what they write, as in c10d's stores.
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
      if (who.role != Role::kAgent) {
        throw CommError({.what = "a round can't begin",
                         .expected = "the word of an agent",
                         .got = who.text()});
      }
      if (request.number < 0 || request.number > INT_MAX) {
        throw CommError({.what = "a round can't have such a number"});
      }
      begin_round(static_cast<int>(request.number),
                  round_number(request.value));
      break;
  }
  return reply;
}

bool Keeper::begin_round(int round, int world_size) {
  if (!door.begin_round(round, world_size)) return false;
  workers_.clear();
  return true;
}

}  // namespace lockstep::store
