#pragma once

#include <cstdint>

#include "lockstep/comm/collectives/collectives.h"

namespace lockstep {

/// c10d's monitored barrier, by messages with tags below those of users: each
/// rank tells rank 0 that it came, and gets two answers, that rank 0 came, and
/// how it ended. So every rank waits for `timeout` for rank 0 to come, then for
/// as long again, and names the same ranks as rank 0. `number`: of this one
/// among the world's, which tells its messages from those of an earlier one
/// that failed.
///
/// Throws CommError that names the ranks that did not come in time: all of
/// them, or the first.
void shm_monitored_barrier(Collectives& collectives, int rank, int size,
                           uint32_t number, Collectives::Timeout timeout,
                           bool wait_all_ranks);

}  // namespace lockstep
