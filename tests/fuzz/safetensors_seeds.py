#!/usr/bin/env python3
"""Writes corpus/safetensors/hostile and valid, where each file is named after
its trick.

The files are in the repository. This script documents them byte by byte. To add
a file, run it again.
"""

import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus" / "safetensors"
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4,
         "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
HUGE = 2**62


def file(header, data=b"", length=None):
    """Returns a file. `length` is the stated length of the header, if it is
    wrong.
    """
    if isinstance(header, dict):
        header = json.dumps(header, ensure_ascii=False, separators=(",", ":"))
    if isinstance(header, str):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + \
        header + data


def tensor(begin, end, shape=None, dtype="U8", **more):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape,
            "data_offsets": [begin, end], **more}


def one(dtype, shape, begin, end, data):
    return file({"w": tensor(begin, end, shape, dtype)}, b"\1" * data)


def two(first, second, data):
    return file({"a": tensor(*first), "b": tensor(*second)}, b"\1" * data)


def text(entry, data=b""):
    """Returns a file with JSON that can't be written as a dict."""
    return file('{"w":{%s}}' % entry, data)


EVERY = file(
    {"__metadata__": {"format": "pt"},
     "a": tensor(0, 12, [3], "F32"), "b": tensor(12, 14, [2, 1], "BOOL")},
    b"\0" * 12 + b"\0\1")
HEADER_BYTES = struct.unpack("<Q", EVERY[:8])[0]
U8 = '"dtype":"U8","shape":[1],"data_offsets":[0,1]'

HOSTILE = {
    # The length, and the header as a whole.
    "empty_file": b"",
    "truncated_in_length": EVERY[:5],
    "truncated_after_length": EVERY[:8],
    "truncated_in_header": EVERY[:8 + HEADER_BYTES // 2],
    "truncated_before_data": EVERY[:8 + HEADER_BYTES],
    "truncated_in_data": EVERY[:-3],
    "truncated_last_byte": EVERY[:-1],
    "header_length_2_to_63": file("{}", length=2**63),
    "header_length_2_to_64_minus_1": file("{}", length=2**64 - 1),
    "header_length_2_to_64_minus_8": file("{}", length=2**64 - 8),
    "header_length_100_mb_promised": file("{}", length=100_000_000),
    "header_length_100_mb_and_1": file("{}", length=100_000_001),
    "header_length_one_too_many": file("{}", length=3),
    "header_length_one_too_few": file("{}", length=1),
    "header_length_zero": file(""),
    "header_is_spaces": file(" " * 16),
    "header_is_a_list": file("[]"),
    "header_is_a_string": file('"w"'),
    "header_is_null": file("null"),
    "header_is_not_json": file('{"w":'),
    "header_starts_with_a_space": file(" {}"),
    "header_starts_with_a_bom": file("\ufeff{}"),
    "header_ends_in_a_comma": file('{"w":{%s},}' % U8, b"\1"),
    "header_twice": file("{}{}"),
    "header_goes_on_after_zero_byte": file("{}\0hidden from a C parser"),
    "header_has_a_comment": file("{}/* a comment */"),
    "pickle": b"\x80\x02}q\0(X\1\0\0\0wq\1K\1u." + b"\0" * 16,
    # Nesting, keys and names.
    "nesting_of_lists": file("[" * 2000 + "]" * 2000),
    "nesting_of_objects": file('{"a":' * 1000 + "1" + "}" * 1000),
    "nesting_in_shape": text('"dtype":"U8","shape":[[1]],'
                             '"data_offsets":[0,1]', b"\1"),
    "duplicate_tensor": file('{"w":{%s},"w":{%s}}' % (U8, U8), b"\1"),
    "duplicate_tensor_escaped": file(
        '{"w":{%s},"\\u0077":{%s}}' % (U8, U8), b"\1"),
    "duplicate_dtype": text('"dtype":"I8",' + U8, b"\1"),
    "duplicate_metadata": file('{"__metadata__":{},"__metadata__":{}}'),
    "duplicate_metadata_key": file('{"__metadata__":{"a":"1","a":"2"}}'),
    "name_not_utf8": file(b'{"\xff":{%s}}' % U8.encode(), b"\1"),
    "name_overlong_utf8": file(b'{"\xc0\xaf":{%s}}' % U8.encode(), b"\1"),
    "name_surrogate_utf8": file(b'{"\xed\xa0\x80":{%s}}' % U8.encode(), b"\1"),
    "name_lone_surrogate": file('{"\\ud800":{%s}}' % U8, b"\1"),
    "name_raw_newline": file('{"a\nb":{%s}}' % U8, b"\1"),
    "name_of_escapes_and_a_bad_tensor": file(
        '{"\\u001b[2J\\u0007\\n%s":{}}' % ("x" * 2000)),
    "name_of_escapes_and_a_bad_bool": file(
        '{"\\u001b[2J\\n%s":{"dtype":"BOOL","shape":[1],'
        '"data_offsets":[0,1]}}' % ("x" * 2000), b"\7"),
    "name_without_end": file('{"' + "\xe9" * 1500),
    "metadata_is_a_list": file({"__metadata__": []}),
    "metadata_of_numbers": file({"__metadata__": {"epoch": 1}}),
    "metadata_nested": file({"__metadata__": {"a": {"b": "c"}}}),
    # One tensor.
    "tensor_is_a_number": file({"w": 1}),
    "tensor_is_null": file({"w": None}),
    "tensor_is_a_list": file({"w": [1, 2]}),
    "unknown_key": file({"w": tensor(0, 1, extra=1)}, b"\1"),
    "no_dtype": text('"shape":[1],"data_offsets":[0,1]', b"\1"),
    "no_shape": text('"dtype":"U8","data_offsets":[0,1]', b"\1"),
    "no_offsets": text('"dtype":"U8","shape":[1]', b"\1"),
    "dtype_unknown": one("F31", [1], 0, 4, 4),
    "dtype_lower_case": one("u8", [1], 0, 1, 1),
    "dtype_is_a_number": one(8, [1], 0, 1, 1),
    "dtype_f8_that_we_lack": one("F8_E4M3", [1], 0, 1, 1),
    "bool_byte_2": file({"w": tensor(0, 2, [2], "BOOL")}, b"\0\2"),
    "bool_byte_255": file({"w": tensor(0, 3, [3], "BOOL")}, b"\1\xff\0"),
    "shape_is_a_string": one("U8", "1", 0, 1, 1),
    "shape_negative": one("U8", [-1], 0, 1, 1),
    "shape_minus_zero": text('"dtype":"U8","shape":[-0],'
                             '"data_offsets":[0,0]'),
    "shape_fractional": one("U8", [1.0], 0, 1, 1),
    "shape_exponent": text('"dtype":"U8","shape":[1e0],'
                           '"data_offsets":[0,1]', b"\1"),
    "shape_beyond_64_bits": one("U8", [2**64], 0, 1, 1),
    "shape_2_to_63": one("U8", [2**63], 0, 2**63, 1),
    "shape_overflows": one("F32", [2**32, 2**32], 0, 0, 0),
    "shape_overflows_in_dtype": one("F64", [2**61], 0, 0, 0),
    "shape_overflows_to_size": one("U8", [2**32, 2**32, 1], 0, 1, 1),
    "shape_overflows_but_for_a_first_zero": one("U8", [0, HUGE, 4], 0, 0, 0),
    "shape_overflows_but_for_a_zero": one("U8", [HUGE, 0, HUGE], 0, 0, 0),
    "shape_strides_overflow_behind_zero": one("F32", [0, HUGE, HUGE, HUGE],
                                              0, 0, 0),
    "shape_of_65_dimensions": one("U8", [1] * 65, 0, 1, 1),
    "promises_1_tb": one("U8", [2**40], 0, 2**40, 16),
    "promises_2_to_63_minus_1": one("U8", [2**63 - 1], 0, 2**63 - 1, 16),
    # The position of the data.
    "offsets_one": text('"dtype":"U8","shape":[1],"data_offsets":[1]', b"\1"),
    "offsets_three": text('"dtype":"U8","shape":[1],'
                          '"data_offsets":[0,1,1]', b"\1"),
    "offsets_negative": one("U8", [1], -1, 0, 1),
    "offsets_reversed": one("U8", [4], 4, 0, 4),
    "offsets_overflow": file({"w": {"dtype": "U8", "shape": [4],
                                    "data_offsets": [2**64 - 2, 2]}}, b"1234"),
    "offsets_overflow_with_header": one("U8", [4], 2**64 - 5, 2**64 - 1, 4),
    "offsets_differ_from_shape": one("F32", [4], 0, 4, 4),
    "offsets_beyond_the_end": one("U8", [9], 0, 9, 4),
    "overlap": two((0, 4), (2, 6), 6),
    "overlap_whole": two((0, 4), (0, 4), 4),
    "overlap_within": two((0, 8), (2, 4), 8),
    "overlap_by_an_empty_tensor": two((0, 4), (2, 2), 4),
    "hole": two((0, 4), (6, 10), 10),
    "hole_at_the_start": one("U8", [4], 2, 6, 6),
    "hole_before_an_empty_tensor": two((0, 4), (6, 6), 4),
    "bytes_left_over": one("U8", [4], 0, 4, 6),
    "bytes_without_tensor": file("{}", b"\1"),
}

VALID = {
    "zero_tensors": file("{}"),
    "zero_tensors_padded": file("{}      "),
    "zero_tensors_and_metadata": file({"__metadata__": {"format": "pt"}}),
    "metadata_empty": file({"__metadata__": {}}),
    "metadata_empty_key": file({"__metadata__": {"": ""}}),
    "metadata_unicode": file({"__metadata__": {"\u00e9": "\U0001f600\n\0"}}),
    "scalar": file({"s": tensor(0, 4, [], "F32")}, b"\0\0\x80\x3f"),
    "zero_elements": file({"z": tensor(0, 0, [0, 7], "F64")}),
    "zero_elements_between": file(
        {"a": tensor(0, 2), "z": tensor(2, 2), "b": tensor(2, 4)}, b"1234"),
    "dimensions_64": one("U8", [1] * 64, 0, 1, 1),
    "data_not_in_header_order": file(
        {"a": tensor(2, 4), "b": tensor(0, 2)}, b"1234"),
    "data_unaligned": file(
        {"a": tensor(0, 1), "b": tensor(1, 9, [1], "F64")}, b"123456789"),
    "header_not_padded": file({"a": tensor(0, 1)}, b"1"),
    "header_spread_out": file(
        json.dumps({"a": tensor(0, 1)}, indent=2) + "\n\t ", b"1"),
    "keys_in_another_order": text(
        '"data_offsets":[0,1],"shape":[1],"dtype":"U8"', b"1"),
    "name_empty": file({"": tensor(0, 1)}, b"1"),
    "name_long": file({"n" * 1000: tensor(0, 1)}, b"1"),
    "name_unicode": file({"\u00e9\U0001f600": tensor(0, 1)}, b"1"),
    "name_with_a_zero": file({"a\0b": tensor(0, 1), "a": tensor(1, 2)}, b"12"),
    "name_like_a_key": file({"dtype": tensor(0, 1)}, b"1"),
    "nan_and_infinity": file(
        {"n": tensor(0, 12, [3], "F32")},
        struct.pack("<III", 0x7fc00001, 0x7f800000, 0xff800000)),
    "two_dtypes_and_metadata": EVERY,
    "tensors_50": file({f"layer.{i}.weight": tensor(2 * i, 2 * i + 2, [1, 2])
                        for i in range(50)}, bytes(range(100))),
}
for _name, _bytes in BYTES.items():
    VALID[f"dtype_{_name.lower()}"] = file(
        {"t": tensor(0, 6 * _bytes, [2, 3], _name)},
        bytes(i % 2 for i in range(6 * _bytes)))


def main():
    for folder, files in (("hostile", HOSTILE), ("valid", VALID)):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (CORPUS / folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
