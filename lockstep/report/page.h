#pragma once

#include <string>

#include "lockstep/report/sections.h"

namespace lockstep::report {

/// A page that needs nothing else: no scripts, no links out. Light or dark as
/// the reader's system is. `body` is HTML.
std::string page(const std::string& title, const std::string& body);

/// The section as a table under its title, and `chart`, an <svg>, below it.
/// Empty if the section has no rows.
std::string table_block(const Section& section, const std::string& chart = "");

}  // namespace lockstep::report
