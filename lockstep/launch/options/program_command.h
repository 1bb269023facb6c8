#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

/// How the words after the options are to be run: torchrun takes every program
/// for a Python script, here it is one if its name ends in .py.
enum class ProgramKind { kByName, kPythonModule, kExecutable };

/// The command line of a worker. Python is $PYTHON_EXEC, else that
/// of $VIRTUAL_ENV, else python3.
std::vector<std::string> program_command(std::vector<std::string> words,
                                         ProgramKind kind);

/// The file that `name` stands for: by PATH, of `environment` or else ours, if
/// it has no slash. Throws LaunchError if there is none that can be run.
std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment);

}  // namespace lockstep::launch
