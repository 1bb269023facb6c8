#include "lockstep/store/admission_list.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/terminal.h"

namespace lockstep::store {
namespace {

// Limit for one rank. A process has one connection for each waiting call.
constexpr size_t kMostOfARank = 256;
// Connections reserved for agents.
constexpr size_t kKeptForAgents = 64;

}  // namespace

AdmissionList::AdmissionList(std::string run_id, size_t most)
    : run_id_(std::move(run_id)), most_(most) {}

std::optional<AdmissionReply> AdmissionList::refusal(
    const Identity& who) const {
  const auto refuse = [](Admission admission, std::string reason) {
    return AdmissionReply{.admission = admission, .reason = std::move(reason)};
  };
  if (who.run_id != run_id_) {
    return refuse(Admission::kOtherJob,
                  fmt::format("this is the job '{}'", run_id_));
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
  if (found->second.connections >= kMostOfARank) {
    return refuse(Admission::kFull,
                  fmt::format("rank {} has {} connections already", who.rank,
                              kMostOfARank));
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
  return {};
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

}  // namespace lockstep::store
