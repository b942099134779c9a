"""data=english: packages, prose in them, near-duplicates, splits, downloads."""

import gzip
import hashlib
import http.server
import io
import json
import os
import random
import struct
import tarfile
import threading
import zlib

import numpy as np
import pytest
import yaml
from conftest import refuses

from tape.data import EnglishCorpus, duplicates, english, tokenize_corpus, train_tokenizer
from tape.data.debian import files_of
from tape.data.fetch import fetch
from tape.evaluation.texts import open_text

SPLITS = EnglishCorpus.splits
WORDS = [f"{a}{b}{c}" for a in "bdfgklm" for b in "aeiou" for c in ("n", "st", "rd", "l")]


def prose(seed, paragraphs=12, words=40):
    chosen = random.Random(seed)
    return [" ".join(chosen.choices(WORDS, k=words)) + "." for _ in range(paragraphs)]


def page(texts):
    listing = "<nav>Next Previous Up and a few more words</nav><pre>int main() { return 0; }</pre>"
    body = "".join(f"<p>{text}</p>" for text in texts)
    return (
        f"<html><body><h1>A title of a page that has many words</h1>{listing}{body}</body></html>"
    )


def package(path, files):
    """Writes a .deb with these files; returns its SHA-256."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    members = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data.getvalue()}
    written = b"!<arch>\n"
    for name, content in members.items():
        written += f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{len(content):<10}`\n".encode()
        written += content + b"\n" * (len(content) % 2)
    path.write_bytes(written)
    return hashlib.sha256(written).hexdigest()


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Forty pages and two copies of each, with a word more, in other files."""
    (folder := tmp_path / "packages").mkdir()
    pages = {f"doc/page{n}.html": page(prose(n)).encode() for n in range(40)}
    for n in range(40):
        own = prose(n)
        pages[f"doc/copy{n}.html"] = page([f"indeed {text}" for text in own]).encode()
        # A part of each paragraph within a longer one.
        longer = [f"{new} {text}" for new, text in zip(prose(100 + n, 12, 200), own, strict=True)]
        pages[f"doc/longer{n}.html"] = page(longer).encode()
    files = {"manual.pod": "=head1 NAME\n\n" + "\n\n".join(prose(90)) + "\n\n    code();\n"}
    sources = [
        ("manual", {name: text.encode() for name, text in files.items()}, "pod"),
        ("pages", pages | {"doc/notes.txt": b"left out"}, "html"),
    ]
    rows = []
    for name, contents, kind in sources:
        file = f"pool/{name}_1.0_all.deb"
        sha256 = package(folder / f"{name}_1%3a1.0_all.deb", contents)
        row = {"name": name, "version": "1.0", "file": file, "sha256": sha256, "format": kind}
        rows.append(row | {"members": r"\.(html|pod)$"})
    path = tmp_path / "table.yaml"
    path.write_text(yaml.safe_dump({"address": "http://127.0.0.1:9", "packages": rows}))
    monkeypatch.setenv("ENGLISH_PACKAGES", str(folder))
    return path, folder


def rows_of(corpus, split):
    lines = (corpus.folder / f"{split}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def shared(rows, others):
    """Returns the largest share of the eight-word sequences of a paragraph that others have."""
    there = {gram for row in others for text in row["text"].split("\n\n") for gram in eights(text)}
    texts = [eights(text) for row in rows for text in row["text"].split("\n\n")]
    return max(len([gram for gram in own if gram in there]) / len(own) for own in texts)


def eights(text):
    words = "".join(c if c.isalnum() and c.isascii() else " " for c in text.lower()).split()
    return [tuple(words[n : n + 8]) for n in range(max(1, len(words) - 7))]


def check_splits(corpus):
    for split in SPLITS:
        others = [row for other in SPLITS if other != split for row in rows_of(corpus, other)]
        assert shared(rows_of(corpus, split), others) <= 0.5  # a quarter in each of two others


def test_no_near_duplicates_are_in_two_splits(table, tmp_path, monkeypatch):
    path, _ = table
    corpus = EnglishCorpus(tmp_path / "built", path)
    assert all(rows_of(corpus, split) for split in SPLITS)
    check_splits(corpus)
    for split in SPLITS:
        assert [*corpus.documents(split)] == [row["text"] for row in rows_of(corpus, split)]
        for row in rows_of(corpus, split):
            number = int(hashlib.sha256(row["name"].encode()).hexdigest()[:14], 16) / 256**7
            assert split == ("test" if number < 0.06 else "validation" if number < 0.1 else "train")
            assert len(row["text"]) >= 1_000
    monkeypatch.setattr(english, "distinct", lambda texts: np.ones(len(texts), bool))
    with pytest.raises(AssertionError):  # the search finds them where they are
        check_splits(EnglishCorpus(tmp_path / "all", path))


def test_a_paragraph_shares_at_most_a_quarter_of_its_eight_word_sequences():
    first, second = prose(1, 2)
    most, more = first.split()[:15], first.split()[:18]  # 8 and 11 of 33 sequences
    texts = [
        first,
        " ".join(most + second.split()[:28]),
        " ".join(more + prose(2, 1)[0].split()[:22]),
        first.upper(),
        "Yes.",
        "yes!",
    ]
    assert duplicates.distinct(texts).tolist() == [True, True, False, False, True, False]
    # A text within a longer one is found from the other side.
    assert duplicates.distinct([first, " ".join([*prose(3, 9), first])]).tolist() == [False, True]
    assert duplicates.distinct([]).tolist() == []


def test_a_built_corpus_is_read_and_not_built_again(table, tmp_path):
    path, packages = table
    corpus = EnglishCorpus(tmp_path / "built", path)
    other = EnglishCorpus(tmp_path / "other", path)
    assert corpus.fingerprint() == other.fingerprint()
    assert corpus.folder.name == other.folder.name
    for file in packages.iterdir():
        file.unlink()
    again = EnglishCorpus(tmp_path / "built", path)
    assert again.fingerprint() == corpus.fingerprint()
    wanted = yaml.safe_load(path.read_text()) | {"sha256": corpus.fingerprint()}
    path.write_text(yaml.safe_dump(wanted))
    key = hashlib.sha256(json.dumps(yaml.safe_load(path.read_text())).encode()).hexdigest()[:16]
    corpus.folder.rename(tmp_path / "built" / key)
    assert EnglishCorpus(tmp_path / "built", path).fingerprint() == corpus.fingerprint()
    with (tmp_path / "built" / key / "test.jsonl").open("a") as file:
        file.write("\n")
    refuses(r"has SHA-256 \w+, not \w+: remove it", EnglishCorpus, tmp_path / "built", path)


def test_missing_and_changed_packages_are_named(table, tmp_path, monkeypatch):
    path, packages = table
    everything = r"set ENGLISH_PACKAGES to it: manual=1\.0 pages=1\.0$"
    monkeypatch.delenv("ENGLISH_PACKAGES")
    given = tmp_path / "built", path
    unreachable = rf"127\.0\.0\.1:9/\S+ cannot be downloaded: .*{everything}"
    with pytest.raises(FileNotFoundError, match=unreachable):
        EnglishCorpus(*given)
    monkeypatch.setenv("ENGLISH_PACKAGES", str(packages))
    file = packages / "pages_1%3a1.0_all.deb"
    file.write_bytes(file.read_bytes() + b"\n")
    message = rf"has no pages_\*\.deb of version 1\.0 with SHA-256 \w+; .*{everything}"
    with pytest.raises(FileNotFoundError, match=message):
        EnglishCorpus(*given)
    assert not [*tmp_path.glob("built/*/train.jsonl")]


def test_the_test_split_is_scored_when_asked_for(table, tmp_path, monkeypatch):
    path, _ = table
    corpus, folder = EnglishCorpus(tmp_path / "cache" / "english", path), tmp_path / "model"
    tokenizer = train_tokenizer(corpus, 300, tmp_path)
    tokenizer.save_pretrained(folder)
    tokens = {split: tokenize_corpus(corpus, split, tokenizer, tmp_path) for split in SPLITS}
    settings = {"_target_": "tape.data.EnglishCorpus", "table": str(path)}
    recorded = {"data": settings, "tokens": {"validation": tokens["validation"].fingerprint}}
    (folder / "trained.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(english, "TABLE", path)
    monkeypatch.setenv("TAPE_CACHE", str(tmp_path / "cache"))
    for data in ("run", "english"):
        for split in ("validation", "test"):
            text = open_text(data, None, folder, tmp_path, split=split)
            assert text.name == f"english ({split})"
            np.testing.assert_array_equal(text.tokens, tokens[split].tokens)
    given = None, folder, tmp_path, None, False, None, "test"
    refuses("--split test: bigrams has train and validation only", open_text, "bigrams", *given)
    refuses("--split test goes with a corpus, such as --data english", open_text, "x", *given)


def test_a_file_without_data_is_no_package(tmp_path):
    (path := tmp_path / "x.deb").write_bytes(b"!<arch>\n")
    refuses("has no data.tar", lambda: [*files_of(path)])
    path.write_bytes(gzip.compress(b"x"))
    refuses("is no Debian package", lambda: [*files_of(path)])


def test_html_keeps_paragraphs_and_leaves_out_the_rest():
    from tape.data.prose import of_html, paragraphs

    text = """<html><head><title>It is a title.</title></head><body><div class="navheader">Up.</div>
      <h2>It is a heading.</h2><ul><li><p>The first item,
      <em>which</em> has   two lines.</p></li><li>The second &lsqb;is it&rsqb;&#151;yes.</li></ul>
      <table><tr><td>It is a cell.</td></tr></table>After the table. <pre>It is code.</pre>
      <p>Next</p><p>x = f(a) + g[b] * 2; return {"key": [1, 2, 3]} and so on.</p>
      A na\xefve end.</body>"""
    kept = [
        "The first item, which has two lines.",
        "The second [is it]\u2014yes.",
        "After the table.",
        "A na\xefve end.",
    ]
    for encoding in ("utf-8", "latin-1"):
        [(name, found)] = of_html({"x.html": text.encode(encoding)})
        assert (name, paragraphs(found)) == ("x.html", kept)


def test_pod_keeps_paragraphs_without_codes():
    from tape.data.prose import of_pod, paragraphs

    text = (
        "=head1 NAME\n\nUse B<the I<big> one> or C<< $x->y >> of L<a page|perlfunc>.\n\n"
        "    It is code.\n\n=begin html\n\nIt is HTML.\n\n=end html\n\nE<lt>X<index>."
    )
    [(_, found)] = of_pod({"x.pod": text.encode()})
    assert paragraphs(found) == ["Use the big one or $x->y of a page."]
    assert found[-1] == "&lt;." or found[-1] == "<."


def test_blocks_of_a_module_are_documents():
    from tape.data.prose import of_sword, paragraphs

    blocks = [
        '<div sID="a" type="x-p"/><w lemma="strong:1">In the</w> beginning.<div eID="a"/>Then.',
        "A word<note>It is a footnote.</note> &amp; more.",
    ]
    data, index = b"gap", b""
    for block in blocks:
        packed = zlib.compress(block.encode())
        index += struct.pack("<3I", len(data), len(packed), len(block))
        data += packed
    index += struct.pack("<3I", 0, 0, 0)
    found = {name: paragraphs(texts) for name, texts in of_sword({"ot.bzs": index, "ot.bzz": data})}
    assert found.pop("ot.bzz/2") == []
    assert found == {"ot.bzz/0": ["In the beginning.", "Then."], "ot.bzz/1": ["A word & more."]}


def test_vectors_of_lines_are_documents():
    from tape.data.prose import of_rdata, paragraphs

    def vector(lines):
        strings = b"".join(b"\0\4\0\t" + struct.pack(">I", len(x)) + x.encode() for x in lines)
        packed = zlib.compress(b"X\n" + strings)
        return struct.pack(">I", len(strings)) + packed

    data = vector(["It is a line,", "and one more.", "", "The end."]) + vector(["Another."])
    found = [(name, paragraphs(texts)) for name, texts in of_rdata({"x.rdb": data})]
    first = ["It is a line, and one more.", "The end."]
    assert found == [("x.rdb/1", first), ("x.rdb/2", ["Another."])]


@pytest.fixture
def server():
    """Serves `content` as a file; the first `cuts` answers end after half of it."""

    class Handler(http.server.BaseHTTPRequestHandler):
        content, cuts, ranges = bytes(range(256)) * 40, 0, []

        def do_GET(self):
            first = int((self.headers["Range"] or "bytes=0-")[6:-1])
            Handler.ranges.append(first)
            body = self.content[first:]
            if not body:
                return self.send_error(416)
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if Handler.cuts:
                Handler.cuts -= 1
                body = body[: len(body) // 2]
            self.wfile.write(body)

        def log_message(self, *given):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield Handler, f"http://127.0.0.1:{served.server_port}/x.deb"
        served.shutdown()


def test_an_interrupted_download_is_continued(server, tmp_path):
    handler, address = server
    sha256, target = hashlib.sha256(handler.content).hexdigest(), tmp_path / "new" / "x.deb"
    handler.cuts = 1
    with pytest.raises(OSError, match=r"x\.deb cannot be downloaded"):
        fetch(address, sha256, target)
    assert not target.exists()
    half = len(handler.content) // 2
    fetch(address, sha256, target)
    assert target.read_bytes() == handler.content and handler.ranges == [0, half]
    fetch(address, sha256, target)
    assert handler.ranges == [0, half]  # nothing is asked for again
    target.rename(target.with_name(".x.deb.part"))
    fetch(address, sha256, target)  # all of it was there
    assert target.read_bytes() == handler.content


def test_another_file_is_refused_and_removed(server, tmp_path):
    _, address = server
    message = rf"^{address} has SHA-256 \w+, not 00: it is another version$"
    refuses(message, fetch, address, "00", tmp_path / "x.deb")
    assert not [*tmp_path.iterdir()]
    (tmp_path / "x.deb").write_bytes(b"damaged")
    refuses("x.deb has SHA-256", fetch, address, "00", tmp_path / "x.deb")


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("ENGLISH_PACKAGES"), reason="needs ENGLISH_PACKAGES=FOLDER")
def test_the_corpus_is_the_documented_one():
    """It has the recorded SHA-256, is large enough, and its splits share no paragraphs."""
    corpus = EnglishCorpus()
    assert corpus.expected == corpus.fingerprint()
    rows = {split: rows_of(corpus, split) for split in SPLITS}
    assert sum(len(row["text"]) for each in rows.values() for row in each) > 40e6
    # With at most five characters a token these have 8,000 tokens.
    assert len([row for row in rows["test"] if len(row["text"]) > 40_000]) >= 20
    assert shared(rows["test"] + rows["validation"], rows["train"]) <= duplicates.SHARE
