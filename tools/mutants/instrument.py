"""Puts the mutants of the product into its sources.

A mutant is not a separate program. Each asks once whether the variable
LOCKSTEP_MUTANT names it, so one build has all mutants, and the programs that a
test starts have the same one.
"""

import re

from .source_copy import Failure

VARIABLE = "LOCKSTEP_MUTANT"
HEADER_NAME = "lockstep/mutant.h"

HEADER = f"""\
#pragma once

#include <cstdlib>
#include <cstring>

namespace lockstep_mutant {{

inline bool is_chosen(const char* name) {{
  const char* const chosen = std::getenv("{VARIABLE}");
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}}

}}  // namespace lockstep_mutant
"""


def condition(name):
    """Returns C++ that is true if the mutant is chosen."""
    return (f'([] {{ static const bool is_on = lockstep_mutant::is_chosen('
            f'"{name}"); return is_on; }}())')


def put_in(text, mutants):
    """Returns the source with its mutants. Raises Failure if the code that one
    of them changes is not there, or is there more than once."""
    for mutant in mutants:
        count = text.count(mutant.before)
        if count != 1:
            raise Failure(f"{mutant.path}: the code of the mutant "
                          f"{mutant.name} is there {count} times, and not once:"
                          f"\n{mutant.before}")
    for mutant in mutants:
        # No mutant may change the code of another one.
        if text.count(mutant.before) != 1:
            raise Failure(f"{mutant.path}: the mutant {mutant.name} changes "
                          "code of another one")
        changed = re.sub(r"\bMUTANT\b", condition(mutant.name), mutant.after)
        lines = mutant.before.count("\n") - changed.count("\n")
        if lines < 0:  # keep the numbers of the lines after it
            changed = changed.replace("\n", " ")
            lines = mutant.before.count("\n")
        text = text.replace(mutant.before, changed + "\n" * lines)
    return f'#include "{HEADER_NAME}"\n#line 1\n' + text


def changed_files(root, mutants):
    """Returns the texts of the files that have mutants, and the header."""
    changed = {HEADER_NAME: HEADER}
    for path in sorted({mutant.path for mutant in mutants}):
        changed[path] = put_in(
            (root / path).read_text(encoding="utf-8"),
            [mutant for mutant in mutants if mutant.path == path])
    return changed
