#pragma once

#include <functional>
#include <string>
#include <thread>

namespace lockstep {

/// A thread that runs `task`. If the system has none left (a limit on
/// processes, threads or memory), throws an Error of `component` that names
/// what the thread is for, as in "a rank of spawn()".
std::thread start_thread(const char* component, const std::string& purpose,
                         std::function<void()> task);

}  // namespace lockstep
