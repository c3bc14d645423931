"""Provenance text inside an XMP packet, as JPEG and WebP carry it.

A JPEG segment holds at most 65533 bytes. A longer text goes into numbered *extended XMP* segments, which
part 3 of the XMP specification defines for this; the main packet then names them by their MD5.
"""

import hashlib
import re
import struct
from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr, unescape

MAX_PACKET = 65000
"""Bytes of a packet that one JPEG segment takes with its header."""

_EXTENSION = b"http://ns.adobe.com/xmp/extension/\0"
_NAMES = (
    'xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:xmp="http://ns.adobe.com/xap/1.0/" '
    'xmlns:xmpNote="http://ns.adobe.com/xmp/note/" xmlns:renderq="urn:renderq:ns:1#"'
)
_OPEN, _CLOSE = "<renderq:provenance>", "</renderq:provenance>"
_TEXT = re.compile(f"{_OPEN}(.*?){_CLOSE}".encode(), re.DOTALL)
_POINTER = re.compile(rb"xmpNote:HasExtendedXMP=[\"']([0-9A-F]{32})[\"']")


def packet(text: str, software: str) -> bytes:
    """A whole XMP packet that carries ``text``."""
    body = f"{_OPEN}{escape(text)}{_CLOSE}"
    return _packet(f"xmp:CreatorTool={quoteattr(software)}", body)


def split(text: str, software: str) -> tuple[bytes, bytes]:
    """The main packet of a JPEG and its extension segments as they stand in the file, empty if not needed."""
    whole = packet(text, software)
    if len(whole) <= MAX_PACKET:
        return whole, b""
    digest = _digest(whole)
    main = _packet(f'xmp:CreatorTool={quoteattr(software)} xmpNote:HasExtendedXMP="{digest.decode()}"', "")
    parts = (_segment(digest, whole, start) for start in range(0, len(whole), MAX_PACKET))
    return main, b"".join(parts)


def text_of(main: bytes, segments: Iterable[bytes] = ()) -> str | None:
    """The text that :func:`packet` or :func:`split` put in, or None if there is none or a part is missing."""
    pointer = _POINTER.search(main)
    whole = _join(segments, pointer.group(1)) if pointer else main
    found = _TEXT.search(whole)
    return unescape(found.group(1).decode()) if found else None


def _packet(attributes: str, body: str) -> bytes:
    return (
        '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">'
        f'<rdf:RDF {_NAMES}><rdf:Description rdf:about="" {attributes}>{body}</rdf:Description></rdf:RDF>'
        '</x:xmpmeta><?xpacket end="r"?>'
    ).encode()


def _segment(digest: bytes, whole: bytes, start: int) -> bytes:
    part = whole[start : start + MAX_PACKET]
    body = _EXTENSION + digest + struct.pack(">II", len(whole), start) + part
    return b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body


def _join(segments: Iterable[bytes], digest: bytes) -> bytes:
    head = _EXTENSION + digest
    parts = sorted(part[len(head) + 4 :] for part in segments if part.startswith(head))
    whole = b"".join(part[4:] for part in parts)  # the big-endian offset in front is what sorted them
    return whole if _digest(whole) == digest else b""


def _digest(whole: bytes) -> bytes:
    return hashlib.md5(whole, usedforsecurity=False).hexdigest().upper().encode()
