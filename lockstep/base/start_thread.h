#pragma once

#include <functional>
#include <string>
#include <thread>

namespace lockstep {

/// Starts a thread that runs `task`. If the system can't start one (a limit on
/// processes, threads or memory), throws an Error of `component` that names the
/// thread's purpose, such as "a rank of spawn()".
std::thread start_thread(const char* component, const std::string& purpose,
                         std::function<void()> task);

}  // namespace lockstep
