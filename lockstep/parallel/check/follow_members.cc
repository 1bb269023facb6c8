#include "lockstep/parallel/check/follow_members.h"

#include <exception>
#include <memory>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/parallel/trial/module_comparison.h"

namespace lockstep {
namespace {

/// Returns whether a replica computes the same as the module after a member has
/// changed.
bool is_same(const Trial& trial, ModuleComparison& comparison) {
  try {
    compare_replica(trial, comparison);
  } catch (const std::exception&) {
    return false;  // the replica may have the member's old value
  }
  if (!comparison.differs()) return true;
  Findings findings;
  explain(trial, comparison, findings);
  return !findings.problem;
}

}  // namespace

void follow_members(const Trial& trial, bool compares) {
  ReplicaGroup& group = trial.group;
  MemberWatch& members = group.members();
  if (!members.has_change()) return;
  // Bytes may have changed on this rank alone, and a module that calls
  // collectives can't run on one rank.
  if (compares && !group.calls_ranks()) {
    const KeptTensors buffers = kept_buffers(group.original());
    const auto comparison = run_module(trial, buffers);
    if (comparison && comparison->is_conclusive() &&
        comparison->outcome().state == CheckState::kPassed) {
      const bool was_same = is_same(trial, *comparison);
      group.remake_replicas();
      // Other shards may differ even if this one does not.
      if (was_same) return members.note(/*had_effect=*/false);
      if (is_same(trial, *comparison)) {
        return members.note(/*had_effect=*/true);
      }
      throw ParallelError(
          "parallel",
          {.code = ErrorCode::kReplicaDiffers,
           .what =
               fmt::format("a member of {} that is not registered was "
                           "changed, and new replicas do not have the change. "
                           "Nothing was updated",
                           group.original().type),
           .expected = "replicas with the same bits",
           .fix =
               "let reset(), or the factory, make the module as it is now, and "
               "call rebuild(); or pass the value to forward()"});
    }
  }
  group.remake_replicas();
  members.skip();
}

}  // namespace lockstep
