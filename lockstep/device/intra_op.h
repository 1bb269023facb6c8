#pragma once

namespace lockstep {

/// Makes operators that this thread calls compute with `threads` threads, and
/// changes nothing for other threads: at::set_num_threads() also sets what
/// threads start with that have not computed yet.
void set_intra_op_threads_of_this_thread(int threads);

}  // namespace lockstep
