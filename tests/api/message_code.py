"""Finds the code in messages, and compares it with that of recommended.cc.

Each piece there is the argument of SAYS(). A piece must be in a message of the
sources, and code in a message must be in a piece.
"""

import re

LITERAL = r'"(?:[^"\\\n]|\\.)*"'
# What is no string is taken first: comments, R"(...)", characters.
TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"\(.*?\)\"|'(?:[^'\\]|\\.)+'|#include[^\n]*|"
    rf"(?P<text>{LITERAL}(?:\s*{LITERAL})*)", re.DOTALL)
# A call with arguments, a member of a pointer, an enumerator, a lambda.
CODE = re.compile(r"[\w>]\((?!s\))[^()]*\w|\w->\w|::k[A-Z]\w+|\[&\]")
# What looks like code and is none of C++.
NO_CODE = ("ceil(N / K)", "ceil(samples / shards)", "2(x3)", "var(--paper)",
           "lockstep::SyncBatchNorm(, eps=, ranks=)",
           "from safetensors.torch import save_file; save_file("
           "{k: v.contiguous() for k, v in torch.load('', weights_only=True).items()}, "
           "'model.safetensors')",
           "state = {k: torch.empty(m.size, dtype=m.properties.dtype) for k, m in "
           "reader.read_metadata().state_dict_metadata.items() if hasattr(m, "
           "'size')}; dcp.load(state, storage_reader=reader); save_file(state, '/')")


def messages_of(text):
    """The strings of a source with a blank in them. Of what one is formatted
    with, a class is called Net and a last argument 0; the rest is left out."""
    for match in TOKEN.finditer(text):
        if match["text"] is None:
            continue
        message = "".join(literal[1:-1]
                          for literal in re.findall(LITERAL, match["text"]))
        message = message.replace('\\"', '"')
        message = message.replace("{{", "\1").replace("}}", "\2")
        message = message.replace("<{}>(...)", "<Net>()").replace(", {})", ", 0)")
        message = re.sub(r"\{\w*(:[^{}]*)?\}", "", message)
        message = message.replace("\1", "{").replace("\2", "}")
        if " " in message:
            yield plain(message)


def plain(code):
    """Code without the layout that clang-format gives it."""
    return re.sub(r"(?<=\() | (?=\))", "", re.sub(r"\s+", " ", code)).strip()


def pieces_of(source):
    """The arguments of SAYS(), whose parentheses balance."""
    for match in re.finditer(r"\bSAYS\(", source):
        depth, end = 1, match.end()
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        yield plain(source[match.end():end - 1])


def findings(root, source):
    """What is said and not compiled, or compiled and not said."""
    said = {}
    for path in sorted((root / "lockstep").rglob("*")):
        # Help, styles and scripts for shells recommend no C++.
        if path.suffix not in (".cc", ".h") or path.name == "completion.cc":
            continue
        for message in messages_of(path.read_text(encoding="utf-8")):
            said.setdefault(message, path.relative_to(root))
    pieces = sorted(set(pieces_of(source)), key=len, reverse=True)
    found = [f"recommended.cc: no message says '{piece}'" for piece in pieces
             if not any(piece in message for message in said)]
    for message, path in said.items():
        rest = message
        for piece in [*pieces, *map(plain, NO_CODE)]:
            rest = rest.replace(piece, "")
        if code := CODE.search(rest):
            found.append(f"{path}: '{code[0]}' in a message is not in "
                         f"tests/api/recommended.cc: {message}")
    return found
