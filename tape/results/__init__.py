"""Finished runs side by side: `python -m tape.results.compare RUN... --out FOLDER`.

runs.py reads runs and their evaluations as rows in long form, and writes them. rows.py groups runs
by their settings and names the groups. table.py and figures.py show the groups, in the columns and
panels that each kind of evaluation defines (tape/evaluation/view.py).
"""
