#pragma once

namespace lockstep::cli {

/// Runs the whole program: parses the arguments, runs the subcommand, prints
/// errors to stderr and turns them into an exit code. For an unknown subcommand
/// or option, the error suggests the nearest one.
int run_program(int argc, char** argv);

}  // namespace lockstep::cli
