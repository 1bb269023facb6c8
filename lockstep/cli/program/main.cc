#include "lockstep/cli/program/app.h"

int main(int argc, char** argv) {
  return lockstep::cli::run_program(argc, argv);
}
