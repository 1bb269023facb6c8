"""What a tool has found out so far, kept in a file."""

import json
import threading


class Results:
    """Sections of values that are kept until the program changes."""

    def __init__(self, path, program, sections, forget):
        self.path = path
        self.lock = threading.Lock()
        self.data = {"program": program} | {name: {} for name in sections}
        if path.exists() and not forget:
            known = json.loads(path.read_text(encoding="utf-8"))
            if known["program"] == program:
                self.data = known

    def __getitem__(self, section):
        return self.data[section]

    def save(self):
        with self.lock:
            text = json.dumps(self.data, indent=1)
            temporary = self.path.with_suffix(".new")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path)
