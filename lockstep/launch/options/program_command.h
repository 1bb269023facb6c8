#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep::launch {

/// Way to run the words after the options. torchrun treats every program as a
/// Python script. kByName does so if the name ends in .py.
enum class ProgramKind { kByName, kPythonScript, kPythonModule, kExecutable };

/// Returns the command line of a worker. Python is $PYTHON_EXEC, else the one
/// in $VIRTUAL_ENV, else python3.
std::vector<std::string> program_command(std::vector<std::string> words,
                                         ProgramKind kind);

/// Returns true if the command line of a worker runs Python.
bool is_python(const std::vector<std::string>& command);

/// Returns the program file for `name`. A name without a slash is looked up in
/// the PATH of `environment`, or else in this process's PATH. Throws
/// LaunchError if there is no such executable file.
std::string find_program(const std::string& name,
                         const std::map<std::string, std::string>& environment);

}  // namespace lockstep::launch
