#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/DeviceType.h>

namespace lockstep {

/// Makes operators that this thread calls compute with `threads` threads,
/// without changing other threads. at::set_num_threads() would also change the
/// count of threads that have not computed yet.
void set_intra_op_threads_of_this_thread(int threads);

/// Runs `task(begin, end)` over equal parts of [0, count), one for each
/// intra-op thread of the calling thread, and rethrows the first exception.
///
/// at::parallel_for is a template that needs OpenMP in the file that uses it,
/// and is silently serial without it. This function gives the work to the team
/// of LibTorch's own OpenMP runtime. A second runtime would start more threads.
void intra_op_for(int64_t count,
                  const std::function<void(int64_t begin, int64_t end)>& task);
/// Same, for work on tensors on `device`. Other threads have other streams of a
/// GPU, so there the calling thread runs the whole task.
void intra_op_for(c10::DeviceType device, int64_t count,
                  const std::function<void(int64_t begin, int64_t end)>& task);

/// Ends the idle threads of the OpenMP team that LibTorch's operators use in
/// the calling thread. The next operator with several threads starts them
/// again. Otherwise they would spin for some milliseconds on cores that other
/// threads need. Does nothing inside a parallel region, or if the runtime is
/// older than OpenMP 5.0.
void end_idle_team_of_this_thread();

}  // namespace lockstep
