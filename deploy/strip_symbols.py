"""Removes from each extension module below FOLDER what only a debugger reads: symbol tables and section headers.

    python3 strip_symbols.py FOLDER

The loader reads an ELF file by its program headers, and never what lies behind the last byte that they name. `strip`
does the same, but it comes with a compiler's tools, which no slim Python image has. Files that are not 64-bit
little-endian ELF stay as they are.
"""

# ruff: noqa: INP001 - a program of the image's build, not part of a package

import struct
import sys
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01"  # ELF, 64 bits, little-endian
PROGRAM_HEADERS_AT = 32  # e_phoff, 8 bytes; e_shoff, 8 bytes, follows
PROGRAM_HEADER_BYTES_AT = 54  # e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx, 2 bytes each


def loaded_bytes(file: bytes) -> int:
    """Return the end of the last part that a program header names, in bytes from the start of the file."""
    (headers,) = struct.unpack_from("<Q", file, PROGRAM_HEADERS_AT)
    size, count = struct.unpack_from("<HH", file, PROGRAM_HEADER_BYTES_AT)
    end = headers + size * count
    for at in range(headers, end, size):
        offset, length = struct.unpack_from("<Q16xQ", file, at + 8)
        end = max(end, offset + length)
    return end


def main(folder: str) -> None:
    for path in Path(folder).rglob("*.so"):
        file = path.read_bytes()
        if path.is_symlink() or not file.startswith(MAGIC):
            continue
        kept = bytearray(file[: loaded_bytes(file)])
        struct.pack_into("<Q", kept, PROGRAM_HEADERS_AT + 8, 0)
        struct.pack_into("<HHH", kept, PROGRAM_HEADER_BYTES_AT + 4, 0, 0, 0)  # no section headers
        if len(kept) < len(file):
            path.write_bytes(kept)


main(sys.argv[1])
