"""Prose in files of documentation: paragraphs of HTML, Perl's POD, SWORD modules and R's data."""

import html
import re
import struct
import zlib
from collections.abc import Callable, Iterator

try:
    import lxml.html
except ModuleNotFoundError as missing:
    raise ValueError(
        "data=english is built by the package lxml: EXTRAS=english bash script/setup.sh, or pip "
        "install lxml"
    ) from missing

Files = dict[str, bytes]  # contents by name, in the order of the archive
Document = tuple[str, list[str]]  # name and paragraphs

SHORT = 8  # words; a shorter paragraph must end as a sentence does, which headings do not
PROSE = r"[A-Za-z ,.;:?!'\"\u2018\u2019\u201c\u201d\u2014-]"
LEAST = 0.9  # share of these characters in prose; code and tables have fewer
END = "\u2029"  # Unicode's paragraph separator
# How R's serialization begins a string (CHARSXP) that is marked as ASCII; its length follows.
STRING = b"\0\4\0\t"
BLOCKS = ("p", "li", "dd", "dt", "div", "section", "blockquote", "br", "h1", "h2", "h3", "h4")
NO_PROSE = (
    "//pre|//table|//nav|//script|//style|//head|//form|//button|//header|//footer|//dt"
    "|//h1|//h2|//h3|//h4|//*[@role='navigation']"
    "|//*[contains(@class,'nav') or contains(@class,'toc') or contains(@class,'listing')]"
)


def paragraphs(texts: list[str]) -> list[str]:
    """Returns the texts that are prose, each with single spaces."""
    found = []
    for text in (" ".join(text.split()) for text in texts):
        is_sentence = text.count(" ") >= SHORT - 1 or re.search(r"[.?!][\"'\u201d\u2019)]*$", text)
        if is_sentence and len(re.findall(PROSE, text)) >= LEAST * len(text):
            found.append(text)
    return found


def decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def of_html(files: Files) -> Iterator[Document]:
    """A file is a document; headings, tables, listings and navigation are left out."""
    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)
    for name, content in files.items():
        # Versions of libxml2 know different names of characters.
        text = re.sub(r"&#?\w+;", lambda x: html.escape(html.unescape(x[0])), decoded(content))
        root = lxml.html.document_fromstring(text.encode(), parser=parser)
        for element in root.xpath(NO_PROSE):
            element.tail = END + (element.tail or "")
            element.drop_tree()
        for element in root.iter(*BLOCKS):
            element.text = END + (element.text or "")
            element.tail = END + (element.tail or "")
        yield name, root.text_content().split(END)


def of_pod(files: Files) -> Iterator[Document]:
    """A file is a document; commands and verbatim paragraphs, which are indented, are left out."""
    for name, content in files.items():
        texts = re.split(r"\n\s*\n", re.sub(r"(?ms)^=begin.*?^=end.*?$", "", decoded(content)))
        prose = "\n\n".join(text for text in texts if not re.match(r"[=\s]", text))
        before = None
        while prose != before:  # codes are nested
            before = prose
            prose = re.sub(r"[XZ]<[^<>]*>", "", prose)
            prose = re.sub(r"L<([^<>|]*\|)?([^<>]*)>", lambda x: (x[1] or x[2]).rstrip("|"), prose)
            prose = re.sub(r"\b[BCFIS](?:<<+\s(.*?)\s>>+|<([^<>]*)>)", r"\1\2", prose)
        yield name, re.sub(r"E<(\w+)>", r"&\1;", prose).split("\n\n")


def of_sword(files: Files) -> Iterator[Document]:
    """A block of a module is a document: a book of the Bible, or a chapter. Blocks are compressed
    by zlib; an index, whose name ends in s and not z, has their offsets and sizes. Footnotes are
    left out."""
    for name, content in files.items():
        if not name.endswith("zz"):
            continue
        index = struct.iter_unpack("<3I", files[name[:-1] + "s"])
        for number, (start, size, _) in enumerate(index):
            text = zlib.decompress(content[start : start + size]).decode() if size else ""
            text = re.sub("(?s)<note.*?</note>", "", text)
            text = re.sub(r"(?s)<title.*?</title>|</?(div|lg|p|chapter)\b[^>]*>", END, text)
            yield f"{name}/{number}", html.unescape(re.sub("<[^>]*>", "", text)).split(END)


def of_rdata(files: Files) -> Iterator[Document]:
    """An object of R's lazy-load database is a document: a vector of lines, compressed by zlib
    after four bytes. Each line follows a header of eight bytes: STRING and its length."""
    for name, content in files.items():
        number = 0
        while content:
            number += 1
            stream = zlib.decompressobj()
            data, content = stream.decompress(content[4:]), stream.unused_data
            lines, header = [], data.find(STRING)
            while header >= 0:
                begin = header + 8
                end = begin + int.from_bytes(data[header + 4 : begin], "big")
                lines.append(decoded(data[begin:end]))
                header = data.find(STRING, end)
            yield f"{name}/{number}", "\n".join(lines).split("\n\n")


FORMATS: dict[str, Callable[[Files], Iterator[Document]]] = {
    "html": of_html,
    "pod": of_pod,
    "rdata": of_rdata,
    "sword": of_sword,
}
