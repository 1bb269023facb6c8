#pragma once

#include "lockstep/parallel/trial/trial.h"

namespace lockstep {

/// Follows assignments to members of the module that are not registered, if
/// there are any since the replicas were made (MemberWatch): makes the replicas
/// again and, if `compares`, compares one of them with the module. If it
/// computes something else, restores the module's buffers and throws
/// ParallelError. Not collective.
void follow_members(const Trial& trial, bool compares);

}  // namespace lockstep
