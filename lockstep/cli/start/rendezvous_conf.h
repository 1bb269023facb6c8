#pragma once

#include <string>

#include "lockstep/launch/options/run_options.h"

namespace lockstep::cli {

/// "join_timeout=60,is_host=true" into the options. Of torchrun's keys, those
/// that mean nothing here are accepted and do nothing. Throws BadUsage.
void apply_rendezvous_conf(const std::string& text,
                           launch::RunOptions& options);

}  // namespace lockstep::cli
