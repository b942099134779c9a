"""Answers of several encodings side by side on one self-contained HTML page."""

from __future__ import annotations

from html import escape

from scrolls.answers import Answer, Asked, Reading, harmless

STYLE = """
:root { color-scheme: light dark; --faint: #0000000d; --line: #00000026; --best: #1a7f37;
  font: 16px/1.5 system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  :root { --faint: #ffffff12; --line: #ffffff2e; --best: #57c174 } }
body { margin: 2rem auto; max-width: 84rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1rem; margin: 0; overflow-wrap: anywhere }
table { border-collapse: collapse } th { text-align: left } th, td { padding: .1rem 1rem .1rem 0 }
td { text-align: right; font-variant-numeric: tabular-nums }
.best, .best td, .best th { color: var(--best); font-weight: bold }
section { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1rem }
p { white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0 }
.question { max-width: 60rem } .gold { border-left: .3rem solid var(--best); padding-left: .7rem }
.answers { display: grid; gap: .7rem; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)) }
article { background: var(--faint); border: 1px solid var(--line); border-radius: .4rem;
  padding: .5rem .8rem }
article.best { border-color: var(--best); color: inherit; font-weight: normal }
header { display: flex; justify-content: space-between }
.empty { opacity: .6; font-style: italic }
"""


def page(reading: Reading) -> str:
    means = "".join(
        f"<tr{_best(mean, reading.best)}><th>{_html(name)}</th><td>{mean:.2f}</td></tr>\n"
        for name, mean in reading.means.items()
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_html(reading.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{_html(reading.title)}</h1>
<table>
{means}</table>
<p>{_html(reading.legend)} The best ones are marked.</p>
{"".join(_section(asked) for asked in reading.asked)}</body>
</html>
"""


def _section(asked: Asked) -> str:
    question = asked.question
    golds = "".join(f'<p class="gold">{_text(gold)}</p>\n' for gold in question.outputs)
    answers = "".join(_article(answer, asked.best) for answer in asked.answers)
    return f"""<section>
<h2>{_html(question.id)}</h2>
{f'<p class="question">{_text(question.question)}</p>' if question.question else ""}
{golds}<div class="answers">
{answers}</div>
</section>
"""


def _article(answer: Answer, best: float | None) -> str:
    score = f"{'★ ' if answer.score == best else ''}{answer.score:.2f}"
    return f"""<article{_best(answer.score, best)}>
<header{_best(answer.score, best)}><b>{_html(answer.encoding)}</b> <span>{score}</span></header>
<p>{_text(answer.text)}</p>
</article>
"""


def _best(score: float, best: float | None) -> str:
    return ' class="best"' if score == best else ""


def _text(text: str) -> str:
    return _html(text.strip()) or '<span class="empty">empty</span>'


def _html(text: str) -> str:
    return escape(harmless(text))
