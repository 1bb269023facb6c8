"""Finds the statements that order streams, and makes each of them removable.

A mutant is not a separate program. instrument() rewrites a source so that each
site asks `lockstep_mutant::keeps(number)` before it runs, and a variable of the
environment names the site that is removed. One build therefore has all mutants.
"""

import dataclasses
import re

# What only a GPU can show.
NEEDS_GPU = re.compile(r"/device/cuda/|/comm/nccl\.cc$")

HEADER = """\
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <unistd.h>

// MUTANT_SITE is the number of the site that is removed. Each site that is
// reached is added to the file MUTANT_REACHED.
namespace lockstep_mutant {

inline void note(int site) {
  static const int file = [] {
    const char* const path = std::getenv("MUTANT_REACHED");
    return path == nullptr
               ? -1
               : ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  }();
  constexpr std::size_t kMax = 4096;
  static std::atomic<bool> is_noted[kMax];
  if (file < 0 || is_noted[static_cast<std::size_t>(site)].exchange(true)) {
    return;
  }
  const std::string line = std::to_string(site) + "\\n";
  if (::write(file, line.data(), line.size()) < 0) std::abort();
}

inline bool keeps(int site) {
  static const int removed = [] {
    const char* const number = std::getenv("MUTANT_SITE");
    return number == nullptr ? -1 : std::atoi(number);
  }();
  note(site);
  return site != removed;
}

inline thread_local int muted = 0;
/// Makes events record nothing, if the site is removed.
class Muted {
 public:
  explicit Muted(int site) : is_removed_(!keeps(site)) { muted += is_removed_; }
  ~Muted() { muted -= is_removed_; }
  Muted(const Muted&) = delete;
  Muted& operator=(const Muted&) = delete;

 private:
  const bool is_removed_;
};
inline bool records(int site) { return keeps(site) && muted == 0; }

template <class Tensor>
void copy_only(const Tensor& destination, const Tensor& source) {
  destination.copy_(source);
}

}  // namespace lockstep_mutant
"""

# The kinds of guards, and of what holds a fence.
GUARD = r"c10::(?:Optional)?(?:Stream|Device)Guard|c10::MultiStreamGuard"
FENCE = r"std::optional<(?:accelerator::)?Fence>|accelerator::Fence"


@dataclasses.dataclass
class Rule:
    kind: str
    pattern: re.Pattern  # of a call, up to its opening bracket
    # How the site is removed: "statement", "guard", "fence", "record", "copy",
    # or the expression that replaces the call ({0}: its arguments).
    way: str


def rule(kind, pattern, way="statement"):
    return Rule(kind, re.compile(pattern), way)


# The first rule that matches a call counts.
RULES = [
    rule("guard", rf"(?:const\s+)?(?:{GUARD})\s+\w+\((?!\))", "guard"),
    rule("guard", r"c10::OptionalStreamGuard\((?!\))",
         "c10::OptionalStreamGuard()"),
    rule("guard", r"\bstream_?(?:\.|->)enter\(", "c10::OptionalStreamGuard()"),
    rule("fence", rf"(?:const\s+)?(?:{FENCE})\s+\w+\(", "fence"),
    rule("fence", r"\w*fence\w*(?:\.|->)(?:emplace|wait)\("),
    rule("event", r"\w+(?:\.|->)record\((?=[^;]*[sS]tream)", "record"),
    rule("event", r"\w+(?:\.|->)block\((?=[^;]*[sS]tream)"),
    rule("event", r"\bstream_?(?:\.|->)mark\(", "nullptr"),
    rule("event", r"\bstream_?(?:\.|->)wait\("),
    rule("record_stream",
         r"(?:\.|->)(?:record_stream|recordStream|recordDataPtrOnStream)\("),
    rule("record_stream", r"accelerator::record_use\("),
    rule("synchronization", r"(?:\.|->)synchronize(?:Device)?\("),
    rule("synchronization", r"accelerator::(?:synchronize|wait_for_all)\("),
    rule("synchronization", r"(?<!void )\bwait_for_stream_of\("),
    rule("synchronization", r"(?<!void )\bcopy_and_wait\(", "copy"),
    rule("binding", r"accelerator::bind_thread\(",
         "accelerator::current_stream({0})"),
    rule("binding", r"(?:\.|->)(?:setDevice|exchangeStream)\("),
    rule("binding", r"(?<!void )\buse_caller_streams\("),
    rule("binding", r"(?:\.|->)maybeExchangeDevice\(", "{0}"),
]
# A wait for a device's own collective is a wait of a stream.
RULES_OF_FILE = {
    "lockstep/comm/device_transport.cc": [
        rule("event", r"\bwork->wait\("),
    ],
}


@dataclasses.dataclass
class Site:
    file: str
    line: int
    kind: str
    text: str  # on one line
    begin: int
    end: int
    replacement: str  # with NUMBER for the number of the site
    number: int = -1

    @property
    def place(self):
        return f"{self.file}:{self.line}"

    @property
    def needs_gpu(self):
        return NEEDS_GPU.search(self.file) is not None


def blanked(text):
    """Returns `text` with comments, strings and directives as spaces."""
    pattern = re.compile(
        r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\])'"
        r"|^[ \t]*#[^\n]*", re.S | re.M)
    return pattern.sub(
        lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def closing(code, at):
    """Returns the place of the bracket that closes the one at `at`."""
    depth = 0
    for place in range(at, len(code)):
        depth += (code[place] in "([{") - (code[place] in ")]}")
        if depth == 0:
            return place
    raise ValueError(f"an open bracket: {code[at:at + 60]!r}")


def opening(code, at):
    """Returns the place of the bracket that opens the one at `at`."""
    depth = 0
    for place in range(at, -1, -1):
        depth += (code[place] in ")]}") - (code[place] in "([{")
        if depth == 0:
            return place
    raise ValueError(f"a bracket too many: {code[max(0, at - 60):at + 1]!r}")


def statement_begin(code, at):
    """Returns where the innermost statement around `at` begins, or None if
    `at` is in a condition."""
    place = at - 1
    while place >= 0 and code[place] not in ";{}([":
        if code[place] in ")]":
            place = opening(code, place)
        place -= 1
    if place >= 0 and code[place] in "([":
        return None
    begin = place + 1
    while True:
        begin += len(code[begin:]) - len(code[begin:].lstrip())
        control = re.match(r"(?:if(?:\s+constexpr)?|for|while)\s*\(|else\b",
                           code[begin:])
        if not control:
            return begin
        last = begin + control.end() - 1
        begin = closing(code, last) + 1 if code[last] == "(" else last + 1


def receiver_begin(code, at):
    """Returns where the expression begins whose member the call at `at` is."""
    while True:
        before = code[:at].rstrip()
        if code[at] in ".-" and before.endswith(")"):
            at = opening(code, len(before) - 1)
        elif before.endswith("->"):
            at = len(before) - 2
        elif before.endswith("."):
            at = len(before) - 1
        elif word := re.search(r"[\w:]+$", before):
            if code[at] not in ".-(":
                return at
            at = word.start()
        else:
            return at


def one_line(text):
    """Returns code without comments and line ends."""
    return " ".join(re.sub(r"//[^\n]*", "", text).split())


def unless(number_test, text, otherwise=""):
    return f"{{ if (lockstep_mutant::{number_test}(NUMBER)) {{ {text} }}" \
           f"{otherwise} }}"


def site_of(path, text, code, found, its_rule):
    """Returns the site of a match, or None if it can't be removed."""
    way = its_rule.way
    end = closing(code, found.end() - 1) + 1
    arguments = text[found.end():end - 1].strip()
    begin = statement_begin(code, found.start())
    first = receiver_begin(code, found.start())
    after = re.match(r"\s*;", code[end:])
    is_statement = after is not None and begin in (first, found.start())

    def site(from_, to, replacement, shown=None):
        line = code.count("\n", 0, found.start()) + 1
        return Site(path, line, its_rule.kind, one_line(shown or text[from_:to]),
                    from_, to, one_line(replacement))

    if is_statement:
        end += after.end()
        statement = text[begin:end]
        if way in ("guard", "fence"):
            kind, name = re.match(r"(?:const\s+)?(.*?)\s+(\w+)\($",
                                  found.group(), re.S).groups()
        if way == "guard":
            return site(begin, end, (
                f"const std::optional<{kind}> {name} = "
                f"lockstep_mutant::keeps(NUMBER) ? "
                f"std::optional<{kind}>(std::in_place, {arguments}) : "
                f"std::optional<{kind}>();"))
        if way == "fence":
            made = "std::in_place, " if "optional" in kind else ""
            return site(begin, end, (
                f"{kind} {name} = [&] {{ "
                f"const lockstep_mutant::Muted muted(NUMBER); "
                f"return {kind}({made}{arguments}); }}();"))
        copy = f" else {{ lockstep_mutant::copy_only({arguments}); }}"
        return site(begin, end, unless(
            "records" if way == "record" else "keeps", statement,
            copy if way == "copy" else ""))
    if way in ("statement", "guard", "fence", "record", "copy"):
        return None
    shown = text[begin:end + after.end()] if begin is not None and after else None
    return site(first, end, (
        f"(lockstep_mutant::keeps(NUMBER) ? {text[first:end]} : "
        f"{way.format(arguments)})"), shown)


def find_sites(path, text):
    """Returns the sites of a source, in order. Raises ValueError for one that
    can't be removed."""
    code = blanked(text)
    sites = []
    for its_rule in RULES_OF_FILE.get(path, []) + RULES:
        for found in its_rule.pattern.finditer(code):
            if any(site.begin <= found.start() < site.end for site in sites):
                continue
            site = site_of(path, text, code, found, its_rule)
            if site is None:
                line = code.count("\n", 0, found.start()) + 1
                raise ValueError(f"{path}:{line}: {found.group()}...) is not a "
                                 "statement, so it can't be removed")
            sites.append(site)
    return sorted(sites, key=lambda site: site.begin)


def instrument(text, sites):
    """Returns the source with each of its sites made removable."""
    if not sites:
        return text
    for site in sorted(sites, key=lambda one: one.begin, reverse=True):
        lines = text[site.begin:site.end].count("\n")
        made = site.replacement.replace("NUMBER", str(site.number))
        text = text[:site.begin] + made + "\n" * lines + text[site.end:]
    return ('#include <optional>\n#include "lockstep/mutant.h"\n#line 1\n' +
            text)
