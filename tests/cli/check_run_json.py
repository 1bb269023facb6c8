"""check_run_json.py SCHEMA RUN...: checks run.json files against the schema.

The schema must be valid, and every property in it must have a description.
"""

import json
import sys

try:
    import jsonschema
except ImportError as error:
    print(error)
    sys.exit(77)


def undescribed(schema, path="run.json"):
    """Returns the paths of the properties without a description."""
    for name, inner in schema.get("properties", {}).items():
        if not inner.get("description"):
            yield f"{path}.{name}"
        yield from undescribed(inner, f"{path}.{name}")
    for inner in schema.get("oneOf", []):
        yield from undescribed(inner, path)
    if isinstance(schema.get("items"), dict):
        yield from undescribed(schema["items"], path + "[]")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        schema = json.load(file)
    validator = jsonschema.Draft202012Validator
    validator.check_schema(schema)
    found = [f"{place} has no description" for place in undescribed(schema)]
    for path in sys.argv[2:]:
        with open(path, encoding="utf-8") as file:
            run = json.load(file)
        found += [f"{path}: {'.'.join(map(str, error.absolute_path))}: "
                  f"{error.message[:200]}"
                  for error in validator(schema).iter_errors(run)]
        # Without these, the check would not cover them.
        found += [f"{path} lacks {key}" for key in schema["properties"]
                  if key not in run]
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
